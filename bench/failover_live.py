def live():
    return []
