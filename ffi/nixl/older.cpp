// What headers of newer compilers use, and the oldest libraries that the shim is loaded beside lack: glibc 2.28 and the
// C++ library of GCC 8. `exports.map` keeps these from everybody else.

#include <new>

// Of glibc 2.32. 0: there are other threads, so counters of shared pointers are atomic.
extern "C" {
extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

// Of GCC 11. For lengths that no memory has.
namespace std {
[[noreturn]] void __throw_bad_array_new_length();
[[noreturn]] void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
