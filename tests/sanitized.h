/* sanitized.h - which sanitizer watches the program, as 0 or 1: gcc and clang each say it in a way
 * of their own. */
#ifndef SANITIZED_H
#define SANITIZED_H

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED_ADDRESSES 1
#elif defined(__SANITIZE_THREAD__)
#define SANITIZED_THREADS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED_ADDRESSES 1
#elif __has_feature(thread_sanitizer)
#define SANITIZED_THREADS 1
#endif
#endif

#ifndef SANITIZED_ADDRESSES
#define SANITIZED_ADDRESSES 0
#endif
#ifndef SANITIZED_THREADS
#define SANITIZED_THREADS 0
#endif
#define SANITIZED (SANITIZED_ADDRESSES || SANITIZED_THREADS)

#endif /* SANITIZED_H */
