// What a list of descriptors comes to.
#pragma once

#include <algorithm>
#include <list>
#include <numeric>
#include <set>

#include "memory.hpp"

namespace polyrail_nixl {

using namespace nixl_interface;

// Descriptors of one transfer, as requests: where they are regular, as tables of pages or as rows.
class Plan {
public:
    Plan(Op op, const Pieces& local, const Pieces& remote) : op(op), local(local), remote(remote) {}

    Status make(polyrail_engine engine, const std::set<Remote*>& lost, polyrail_prepared& prepared, int& code) {
        if (local.size() != remote.size() || local.size() == 0) return Status::INVALID_PARAMETER;
        if (const Status status = cut(lost, code); status != Status::SUCCESS) return status;
        // Few blocks a run: the tables would cost more than they spare.
        return runs.size() * 4 > local.size() ? singly(engine, prepared, code) : by_runs(engine, prepared, code);
    }

    std::set<const Metadata*> locals;
    std::set<Remote*> remotes;

private:
    struct Run {
        std::size_t first, count;
        polyrail_segment local, remote;
    };

    std::uint64_t here(std::size_t index) const {
        return local[index].address - static_cast<const Local*>(local[index].metadata)->base;
    }
    std::uint64_t there(std::size_t index) const {
        return remote[index].address - static_cast<const Remote*>(remote[index].metadata)->base;
    }

    // Runs of descriptors that have their segments and length in common.
    Status cut(const std::set<Remote*>& lost, int& code) {
        const Piece* before = nullptr;
        const Piece* before_there = nullptr;
        for (std::size_t index = 0; index < local.size(); ++index) {
            const Piece &one = local[index], &other = remote[index];
            if (one.length != other.length || one.length == 0) return Status::INVALID_PARAMETER;
            const bool goes_on = before != nullptr && before->metadata == one.metadata &&
                                 before_there->metadata == other.metadata && before->length == one.length;
            if (goes_on) {
                ++runs.back().count;
            } else {
                auto* to = static_cast<Remote*>(other.metadata);
                Run run{index, 1, static_cast<const Local*>(one.metadata)->segment, {}};
                Error error;
                locals.insert(one.metadata);
                const bool is_first = remotes.insert(to).second;
                code = to->open(run.remote, error, is_first && lost.contains(to));
                if (code == POLYRAIL_ERROR_PEER_LOST && !lost.contains(to)) return Status::REMOTE_DISCONNECT;
                if (code != POLYRAIL_OK) return error.told("memory of the peer");
                runs.push_back(run);
            }
            before = &one;
            before_there = &other;
        }
        return Status::SUCCESS;
    }

    Status singly(polyrail_engine engine, polyrail_prepared& prepared, int& code) const {
        auto request = POLYRAIL_NEW(polyrail_request);
        request.op = op == Op::WRITE ? POLYRAIL_WRITE : POLYRAIL_READ;
        std::vector<polyrail_request> requests;
        requests.reserve(local.size());
        for (const Run& run : runs) {
            request.local = run.local;
            request.remote = run.remote;
            for (std::size_t index = run.first; index < run.first + run.count; ++index) {
                request.local_offset = here(index);
                request.remote_offset = there(index);
                request.length = local[index].length;
                requests.push_back(request);
            }
        }
        Error error;
        code = polyrail_prepare(engine, requests.data(), requests.size(), &prepared, &error);
        return code == POLYRAIL_OK ? Status::SUCCESS : said(error);
    }

    // One end of a run: the least offset, the distance that all are multiples of from there, and which multiples.
    struct Side {
        std::uint64_t base = 0, stride = 0;
        std::vector<std::uint32_t> pages;
        bool are_rows = true, fits = true;
    };

    template <typename Offset>
    static Side side(const Run& run, const Offset& offset) {
        Side made;
        const std::uint64_t first = offset(run.first);
        const std::uint64_t step = run.count > 1 ? offset(run.first + 1) - first : 0;
        made.base = first;
        for (std::size_t nth = 0; nth < run.count; ++nth) {
            const std::uint64_t at = offset(run.first + nth);
            const std::uint64_t apart = at > first ? at - first : first - at;
            made.are_rows = made.are_rows && at == first + nth * step;
            made.base = std::min(made.base, at);
            // Mostly a multiple of what it was: no division more than that.
            if (made.stride == 0 || apart % made.stride != 0) made.stride = std::gcd(made.stride, apart);
        }
        if (made.are_rows && (run.count == 1 || offset(run.first + run.count - 1) >= first)) {
            made.base = first;
            made.stride = step;
            return made;
        }
        made.are_rows = false;
        made.pages.reserve(run.count);
        for (std::size_t nth = 0; nth < run.count; ++nth) {
            const std::uint64_t apart = offset(run.first + nth) - made.base;
            const std::uint64_t page = made.stride == 0 ? 0 : apart / made.stride;
            made.fits = made.fits && page <= UINT32_MAX;
            made.pages.push_back(static_cast<std::uint32_t>(page));
        }
        return made;
    }

    Status by_runs(polyrail_engine engine, polyrail_prepared& prepared, int& code) const {
        std::list<Side> sides;
        std::vector<polyrail_paged_request> requests;
        requests.reserve(runs.size());
        for (const Run& run : runs) {
            const Side& near = sides.emplace_back(side(run, [this](std::size_t index) { return here(index); }));
            const Side& far = sides.emplace_back(side(run, [this](std::size_t index) { return there(index); }));
            if (!near.fits || !far.fits) return singly(engine, prepared, code);
            auto request = POLYRAIL_NEW(polyrail_paged_request);
            request.op = op == Op::WRITE ? POLYRAIL_WRITE : POLYRAIL_READ;
            request.local = run.local;
            request.local_base = near.base;
            request.local_stride = near.stride;
            request.local_pages = near.are_rows ? nullptr : near.pages.data();
            request.remote = run.remote;
            request.remote_base = far.base;
            request.remote_stride = far.stride;
            request.remote_pages = far.are_rows ? nullptr : far.pages.data();
            request.length = local[run.first].length;
            request.count = run.count;
            requests.push_back(request);
        }
        Error error;
        code = polyrail_prepare_paged(engine, requests.data(), requests.size(), &prepared, &error);
        return code == POLYRAIL_OK ? Status::SUCCESS : said(error);
    }

    static Status said(const Error& error) {
        return error.code == POLYRAIL_ERROR_PEER_LOST ? Status::REMOTE_DISCONNECT : error.told("a transfer");
    }

    const Op op;
    const Pieces& local;
    const Pieces& remote;
    std::vector<Run> runs;
};

}  // namespace polyrail_nixl
