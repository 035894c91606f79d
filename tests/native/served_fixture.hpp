// Serves files of one engine to another in the same process, asked for over a lane.
#pragma once

#include "file_fixture.hpp"
#include "storage/file_asking.hpp"
#include "storage/file_serving.hpp"

namespace zerohop::test {

using storage::FileAsking;
using storage::FileServing;
using storage::Purpose;
using storage::ServedEnds;
using storage::ServedNumber;

// A server `a`, and a client `b` whose memory the server has mapped.
struct Served {
    explicit Served(std::unique_ptr<FileIo> io)
        : pair("shm"), queue(std::make_shared<FileQueue>(*pair.a.engine, std::move(io), kStaging)),
          asking(std::make_shared<FileAsking>(*pair.b.engine, pair.b.lane)),
          serving(std::make_shared<FileServing>(*pair.a.engine, queue, pair.a.lane, asking->queue(), bytes)) {
        pair.a.engine->add_work(queue);
        pair.a.engine->add_work(serving);
        pair.b.engine->add_work(asking);
        asking->ask_by(serving->queue());
    }
    Served(const Served&) = delete;
    Served& operator=(const Served&) = delete;

    using Number = std::shared_ptr<const ServedNumber>;
    Number number(Purpose::What what, uint16_t value) const {
        return std::make_shared<const ServedNumber>(asking, what, value);
    }
    Number add_file(const TestFile& file, bool reads = true, bool writes = true) const {
        return number(Purpose::What::forget_file, serving->add_file(file.file, reads, writes).value());
    }
    Number add_memory(Reach& reach, uint8_t rights = kReadWrite) const {
        const std::shared_ptr<const Route> route = pair.a.engine->route(reach.route);
        REQUIRE(route->access != nullptr);
        return number(Purpose::What::forget_memory,
                      serving->add_memory(route->access, 0, reach.remote->nbytes(), rights).value());
    }
    OpRef start(ServedEnds ends, const std::vector<Range>& ranges) const {
        OpRef op = pair.b.engine->operations().create(0);
        auto sink = std::make_shared<storage::OperationSink>(*pair.b.engine, op, ranges.size(), 0,
                                                             std::make_shared<storage::Moved>());
        REQUIRE(asking->post(std::move(ends), ranges, std::move(sink)));
        return op;
    }

    Pair pair;
    std::shared_ptr<storage::ServedBytes> bytes = std::make_shared<storage::ServedBytes>();
    std::shared_ptr<FileQueue> queue;
    std::shared_ptr<FileAsking> asking;
    std::shared_ptr<FileServing> serving;
};

} // namespace zerohop::test
