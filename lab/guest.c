/* The whole userland of the laboratory's guest: pid 1, static, started by the kernel.
 *
 * Kernel command line: count_ms=N  a line on the console every N ms (default 200)
 *                      write_ms=N  a block on the disk every N ms (default 200)
 *                      tick_ms=N   how often it looks whether one of these is due (default 20)
 *                      net=dhcp    ask for an address on eth0, say "address A" on the console, echo on TCP port 7
 * Console: "count N run=R up=S gap_ms=G": G is the longest time since the last line in which this process did not run.
 * Disk: a ring of BLOCKS blocks of 512 bytes, "seq=N run=R count=N up=S", each written directly and flushed. Before
 * every write the block before it is read: where another run wrote it after this one began, "FOREIGN" is said on the
 * console and written to block 0, which nobody else writes.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/input.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 512
#define BLOCKS 255
#define TICK_MS 20

static int console = 1, disk = -1;
static char run[64] = "?";
static char *block;

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_BOOTTIME, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void say(const char *format, ...)
{
    char line[256];
    va_list more;
    va_start(more, format);
    int length = vsnprintf(line, sizeof line, format, more);
    va_end(more);
    if (write(console, line, length) < 0) { /* nobody listens */ }
}

static void load_modules(void)
{
    struct dirent **names;
    int count = scandir("/mod", &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        snprintf(path, sizeof path, "/mod/%s", names[i]->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && names[i]->d_name[0] != '.')
            syscall(SYS_finit_module, fd, "", 0);
        close(fd);
    }
}

static int option(const char *text, const char *name, int otherwise)
{
    const char *found = strstr(text, name);
    int value = found ? atoi(found + strlen(name)) : otherwise;
    return value > 0 ? value : otherwise;
}

static int read_text(const char *path, char *text, int size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int length = fd < 0 ? -1 : (int)read(fd, text, size - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    return length;
}

/* the sequence number of the block, and the run that wrote it; -1 where it holds none */
static long block_at(long index, char *writer)
{
    long seq = -1;
    if (pread(disk, block, BLOCK, index * BLOCK) != BLOCK || sscanf(block, "seq=%ld run=%63s", &seq, writer) != 2)
        return -1;
    return seq;
}

static int put(long index, const char *format, ...)
{
    va_list more;
    memset(block, ' ', BLOCK);
    va_start(more, format);
    int length = vsnprintf(block, BLOCK - 1, format, more);
    va_end(more);
    block[length] = ' ';
    block[BLOCK - 1] = '\n';
    if (pwrite(disk, block, BLOCK, index * BLOCK) == BLOCK)
        return 1;
    say("disk error: %s\n", strerror(errno));
    return 0;
}

static int power_button(void)
{
    for (int i = 0; i < 8; i++) {
        char path[64], name[128];
        snprintf(path, sizeof path, "/sys/class/input/event%d/device/name", i);
        if (read_text(path, name, sizeof name) > 0 && strstr(name, "Power")) {
            snprintf(path, sizeof path, "/dev/input/event%d", i);
            return open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        }
    }
    return -1;
}

int main(void)
{
    char cmdline[2048], writer[64];
    long count = 0, writes = 0, seq = 0, mine = 0;
    mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/dev", 0755);
    mount("proc", "/proc", "proc", 0, "");
    mount("sysfs", "/sys", "sysfs", 0, "");
    mount("devtmpfs", "/dev", "devtmpfs", 0, "");
    load_modules();
    int fd = open("/proc/sys/kernel/printk", O_WRONLY | O_CLOEXEC);
    if (write(fd, "1", 1) < 0) { /* the kernel goes on talking */ }
    close(fd);
    console = open("/dev/ttyS0", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (console < 0)
        console = 1;
    read_text("/proc/cmdline", cmdline, sizeof cmdline);
    read_text("/proc/sys/kernel/random/boot_id", run, sizeof run);
    int count_ms = option(cmdline, "count_ms=", 200), write_ms = option(cmdline, "write_ms=", 200);
    int tick_ms = option(cmdline, "tick_ms=", TICK_MS);
    for (int i = 0; i < 1000 && disk < 0; i++) { /* a busy machine takes seconds to find it */
        disk = open("/dev/vda", O_RDWR | O_DIRECT | O_DSYNC | O_CLOEXEC);
        if (disk < 0)
            usleep(10000);
    }
    if (posix_memalign((void **)&block, 4096, 4096))
        return 1;
    for (long i = 1; disk >= 0 && i <= BLOCKS; i++) {
        long there = block_at(i, writer);
        if (there > seq)
            seq = there;
    }
    say("guest up run=%s up=%.3f seq=%ld\n", run, now(), seq);
    if (fork() == 0) { /* a shell for users who attach to the console */
        setsid();
        dup2(console, 0), dup2(console, 1), dup2(console, 2);
        char *argv[] = {"sh", NULL};
        char *env[] = {"PATH=/bin", "PS1=guest# ", NULL};
        execve("/bin/busybox", argv, env);
        for (;;)
            pause();
    }
    if (strstr(cmdline, "net=dhcp") && fork() == 0) {
        setsid();
        dup2(console, 1), dup2(console, 2);
        char *argv[] = {"sh", "/net.sh", NULL};
        char *env[] = {"PATH=/bin", NULL};
        execve("/bin/busybox", argv, env);
        _exit(1);
    }
    int button = power_button();
    double line = now(), write_due = line, last = line, gap = 0;
    for (;;) {
        struct pollfd events = {button, POLLIN, 0};
        struct input_event event;
        if (poll(&events, 1, tick_ms) > 0 && read(button, &event, sizeof event) == sizeof event && event.value == 1) {
            say("power button\n");
            sync();
            reboot(RB_POWER_OFF);
        }
        while (waitpid(-1, NULL, WNOHANG) > 0) { }
        double at = now();
        if (at - last > gap)
            gap = at - last;
        last = at;
        if (at >= line) {
            say("count %ld run=%s up=%.3f gap_ms=%.0f\n", ++count, run, at, gap * 1000);
            gap = 0;
            line = at - line > 1 ? at + count_ms / 1e3 : line + count_ms / 1e3;
        }
        if (disk >= 0 && at >= write_due) {
            if (mine && (block_at(1 + seq % BLOCKS, writer) != seq || strcmp(writer, run))) {
                say("FOREIGN run=%s found run=%s at seq=%ld\n", run, writer, seq);
                put(0, "FOREIGN run=%s found run=%s seq=%ld up=%.3f", run, writer, seq, at);
            }
            if (put(1 + (seq + 1) % BLOCKS, "seq=%ld run=%s count=%ld up=%.3f", seq + 1, run, writes + 1, at))
                seq++, writes++, mine = 1;
            write_due = at - write_due > 1 ? at + write_ms / 1e3 : write_due + write_ms / 1e3;
        }
    }
}
