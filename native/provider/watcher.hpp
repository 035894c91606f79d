// The thread that polls a link, as the link's stream sees it.
#pragma once

namespace zerohop {

class Watcher {
public:
    virtual ~Watcher() = default;
    // Wakes a sleeper, because there is something to poll for.
    virtual void kick() = 0;
    // Has a readable descriptor wake sleepers; a writable one, too, while that is asked for.
    virtual void watch(int fd) = 0;
    virtual void watch_writable(int fd, bool writable) = 0;
    virtual void unwatch(int fd) = 0;
};

} // namespace zerohop
