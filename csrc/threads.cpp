#include "threads.h"

#include <cstdlib>
#include <new>

namespace fedmef {

namespace {

constexpr int SPINS = 4000;  // a step has hundreds of short loops: sleeping between them would cost more than they do

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Threads::Threads(int count) : scratch_(size_t(count)) {
  try {
    for (int thread = 1; thread < count; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

Threads::~Threads() {
  stop();
  free_scratch();
}

void Threads::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    ++generation_;
  }
  begins_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Threads::reserve(size_t bytes) {
  const size_t rounded = (bytes + 4095) / 4096 * 4096;
  for (Scratch& mine : scratch_) {
    if (mine.bytes >= bytes) continue;
    std::free(mine.memory);
    mine = {};
    if (posix_memalign(&mine.memory, 4096, rounded) != 0) {
      mine.memory = nullptr;
      throw std::bad_alloc();
    }
    mine.bytes = rounded;
  }
}

void Threads::free_scratch() {
  for (Scratch& mine : scratch_) {
    std::free(mine.memory);
    mine = {};
  }
}

size_t Threads::scratch_bytes() const {
  size_t bytes = 0;
  for (const Scratch& mine : scratch_) bytes += mine.bytes;
  return bytes;
}

void Threads::run_shared(int items, const std::function<void(int, int)>& work) {
  {
    std::lock_guard lock(mutex_);
    work_ = &work;
    items_ = items;
    next_ = 0;
    busy_ = int(workers_.size());
    failure_ = nullptr;
    ++generation_;
  }
  begins_.notify_all();
  take_items(0);
  for (int spins = 0; busy_.load() != 0; ++spins) {
    if (spins < SPINS)
      pause_briefly();
    else
      std::this_thread::yield();
  }
  if (failure_) std::rethrow_exception(failure_);
}

void Threads::serve(int thread) {
  int seen = 0;
  while (true) {
    for (int spins = 0; generation_.load() == seen && spins < SPINS; ++spins) pause_briefly();
    if (generation_.load() == seen) {
      std::unique_lock lock(mutex_);
      begins_.wait(lock, [&] { return generation_.load() != seen; });
    }
    seen = generation_.load();
    if (stopping_) return;
    take_items(thread);
    --busy_;
  }
}

void Threads::take_items(int thread) {
  try {
    for (int item; (item = next_.fetch_add(1)) < items_;) (*work_)(item, thread);
  } catch (...) {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    next_ = items_;
  }
}

}  // namespace fedmef
