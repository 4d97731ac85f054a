"use strict";
// One stop of the tab key for each group of hosts; the arrow keys go from host to host.
for (const group of document.querySelectorAll(".hosts")) {
  group.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const hosts = [...group.children], at = hosts.indexOf(document.activeElement);
    const next = event.key === "Home" ? 0 : event.key === "End" ? hosts.length - 1 : at + step;
    if (at < 0 || !hosts[next]) return;
    event.preventDefault();
    hosts[at].tabIndex = -1;
    hosts[next].tabIndex = 0;
    hosts[next].focus();
  });
}
