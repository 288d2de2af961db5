// The threads of one call: units of work go to whoever is free, and phases end together.
#pragma once
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

constexpr int64_t ROW_GRAIN = 8;  // rows of cheap work that go to one thread at a time

class Team {
  public:
    int size = 1;

  private:
    friend class Member;

    static constexpr int SPINS_BEFORE_YIELD = 4096;

    alignas(64) std::atomic<uint64_t> ticket_{0};   // phase << 32 | first unit that nobody has
    alignas(64) std::atomic<int64_t> num_done_{0};  // units of the phase
};

// One thread of a team.
class Member {
  public:
    Member(Team& team, int thread) : team(team), thread(thread) {}

    // `work(unit)` for every unit in [0, num_units), `grain` neighbours to one thread; returns when
    // all are done. All threads of the team call this with the same numbers. Units go to whoever is
    // free, and a phase ends with its last unit, not with the last thread's arrival: a thread whose
    // core is busy with something else holds nobody up unless it has a unit in hand.
    template <class Work>
    void share(int64_t num_units, int64_t grain, Work work) {
        if (team.size == 1) {
            for (int64_t unit = 0; unit < num_units; ++unit) work(unit);
            return;
        }
        if (num_units == 0) return;
        uint64_t ticket = team.ticket_.load(std::memory_order_acquire);
        while (ticket >> 32 == phase_) {
            const int64_t first = int64_t(ticket & 0xffffffffu);
            if (first >= num_units) {
                ticket = wait();
                break;
            }
            const int64_t count = std::min(grain, num_units - first);
            if (!team.ticket_.compare_exchange_weak(
                    ticket, ticket + count, std::memory_order_acq_rel, std::memory_order_acquire))
                continue;
            for (int64_t unit = first; unit < first + count; ++unit) work(unit);
            if (team.num_done_.fetch_add(count, std::memory_order_acq_rel) + count == num_units) {
                team.num_done_.store(0, std::memory_order_relaxed);
                team.ticket_.store((phase_ + 1) << 32, std::memory_order_release);
                break;
            }
            ticket = team.ticket_.load(std::memory_order_acquire);
        }
        ++phase_;
    }

    Team& team;
    const int thread;

  private:
    uint64_t wait() const {
        for (int spins = 0;; ++spins) {
            const uint64_t ticket = team.ticket_.load(std::memory_order_acquire);
            if (ticket >> 32 != phase_) return ticket;
            if (spins < Team::SPINS_BEFORE_YIELD)
                __builtin_ia32_pause();
            else
                sched_yield();
        }
    }

    uint64_t phase_ = 0;
};

// Runs `work(member)` on all OpenMP threads of the caller.
template <class Work>
void run_team(Work work) {
    Team team;
    team.size = omp_get_max_threads();
#pragma omp parallel num_threads(team.size)
    {
        Member member(team, omp_get_thread_num());
        work(member);
    }
}

// Adds the time since it was made, or since the last call, to a phase; on the calling thread only.
class Stopwatch {
  public:
    explicit Stopwatch(bool is_running) : is_running_(is_running), since_(now()) {}

    void add_to(int64_t& phase) {
        if (!is_running_) return;
        const int64_t time = now();
        phase += time - since_;
        since_ = time;
    }

  private:
    static int64_t now() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    bool is_running_;
    int64_t since_;
};
