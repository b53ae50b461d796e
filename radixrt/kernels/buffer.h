// Memory that a kernel keeps between calls.

#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace radixrt {

// Numbers at an address that is a multiple of a cache line, so that vectors and rows of tile registers lie in one each.
template <typename T>
class Buffer {
  public:
    // Makes room for so many numbers, which lose their values if there was less.
    T* resize(int64_t count) {
        if (count > capacity_) {
            data_.reset();
            data_.reset(static_cast<T*>(::operator new(count * sizeof(T), LINE)));
            capacity_ = count;
        }
        return data_.get();
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    T& operator[](int64_t index) { return data_.get()[index]; }
    const T& operator[](int64_t index) const { return data_.get()[index]; }

  private:
    static constexpr std::align_val_t LINE{64};
    struct Delete {
        void operator()(T* memory) const { ::operator delete(memory, LINE); }
    };
    std::unique_ptr<T, Delete> data_;
    int64_t capacity_ = 0;
};

}  // namespace radixrt
