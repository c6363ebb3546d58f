/* Sees every file-system call of this process that changes something below one directory.
 *
 * Lance's calls do not all pass the C library, so the kernel is asked: a seccomp filter turns each such call
 * into SIGSYS, and the handler performs it, in one order for all threads, and notes it. It can also let the
 * k-th call fail, or kill the process in front of it. Calls whose effect on a file it cannot tell (shared
 * writable maps) are noted as unknown, so that a test can refuse the recording.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "only written for x86_64"
#endif

enum { OPEN = 1, WRITE, RENAME, LINK, UNLINK, MKDIR, RMDIR, TRUNCATE, SYNC, SYNC_ALL, UNKNOWN, MARK };

struct record {
    uint32_t kind, path_bytes, other_bytes, flags;
    uint64_t inode, offset, data_bytes;
};

#define PATH_BYTES 4200
static char root[PATH_BYTES];
static size_t root_bytes;
static int log_fd = -1;
static long fail_at, fail_errno, kill_at, counted;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static char path_a[PATH_BYTES], path_b[PATH_BYTES], linked[PATH_BYTES];

/* The one place from which a call passes the filter. */
__attribute__((naked)) static long raw(long n, long a, long b, long c, long d, long e, long f) {
    __asm__("mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n mov %r8, %r10\n"
            "mov %r9, %r8\n mov 8(%rsp), %r9\n syscall\n .globl shim_passed\n shim_passed: ret\n");
}
extern char shim_passed[];

static void put(const void *bytes, size_t count) {
    const char *at = bytes;
    while (count > 0) {
        long done = raw(SYS_write, log_fd, (long)at, count, 0, 0, 0);
        if (done <= 0) _exit(97);
        at += done;
        count -= done;
    }
}

static void note(uint32_t kind, const char *path, const char *other, uint32_t flags, uint64_t inode,
                 uint64_t offset, const struct iovec *parts, int count, uint64_t bytes) {
    struct record r = {kind, path ? strlen(path) : 0, other ? strlen(other) : 0, flags, inode, offset, bytes};
    put(&r, sizeof r);
    if (path) put(path, r.path_bytes);
    if (other) put(other, r.other_bytes);
    for (int i = 0; i < count && bytes > 0; i++) {
        size_t some = parts[i].iov_len < bytes ? parts[i].iov_len : bytes;
        put(parts[i].iov_base, some);
        bytes -= some;
    }
}

static int below(const char *path) {
    return strncmp(path, root, root_bytes) == 0 && (path[root_bytes] == '/' || path[root_bytes] == 0);
}

static void path_of_fd(int fd, char *into) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, into, PATH_BYTES - 1);
    into[length < 0 ? 0 : length] = 0;
}

static int absolute(int dirfd, const char *path, char *into) {
    if (path == NULL) return 0;
    size_t used = 0;
    if (path[0] != '/') {
        if (dirfd == AT_FDCWD) {
            if (raw(SYS_getcwd, (long)into, PATH_BYTES, 0, 0, 0, 0) < 0) return 0;
        } else {
            path_of_fd(dirfd, into);
        }
        used = strlen(into);
        into[used++] = '/';
    }
    if (used + strlen(path) >= PATH_BYTES) return 0;
    strcpy(into + used, path);
    for (size_t end = strlen(into); end > 1 && into[end - 1] == '/'; end--) into[end - 1] = 0;
    return below(into);
}

/* Count a call that is about to happen; its error where it shall not. */
static long due(void) {
    counted++;
    if (counted == kill_at) raw(SYS_kill, getpid(), SIGKILL, 0, 0, 0, 0);
    return counted == fail_at ? -fail_errno : 0;
}

static uint64_t inode_at(const char *path) {
    struct stat found;
    return lstat(path, &found) == 0 ? found.st_ino : 0;
}

static long named(uint32_t kind, long n, long *a, int dirfd, const char *path, int dirfd2, const char *other) {
    int inside = absolute(dirfd, path, path_a);
    int inside2 = other ? absolute(dirfd2, other, path_b) : 0;
    if (!inside && !inside2) return raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    long failed = due();
    if (failed) return failed;
    long result = raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result >= 0)
        note(kind, path_a, other ? path_b : NULL, 0, inode_at(other ? path_b : path_a), 0, NULL, 0, 0);
    return result;
}

static long opened(long n, long *a, int dirfd, const char *path, int flags) {
    if (!absolute(dirfd, path, path_a)) return raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    long failed = due();
    if (failed) return failed;
    long result = raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    struct stat found;
    if (result >= 0 && fstat(result, &found) == 0)
        note(OPEN, path_a, NULL, flags, found.st_ino, 0, NULL, 0, 0);
    return result;
}

/* A call on a descriptor: its file, if that lies below the root. */
static int inside_fd(int fd, struct stat *found) {
    if (fstat(fd, found) != 0 || !(S_ISREG(found->st_mode) || S_ISDIR(found->st_mode))) return 0;
    path_of_fd(fd, linked);
    return below(linked);
}

static long written(long n, long *a, int fd, const struct iovec *parts, int count, int64_t at) {
    struct stat found;
    if (!inside_fd(fd, &found)) return raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    long failed = due();
    if (failed) return failed;
    if (at < 0) {
        int appends = fcntl(fd, F_GETFL) & O_APPEND;
        at = appends ? found.st_size : lseek(fd, 0, SEEK_CUR);
    }
    long result = raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result > 0) note(WRITE, linked, NULL, 0, found.st_ino, at, parts, count, result);
    return result;
}

static long on_fd(uint32_t kind, long n, long *a, int fd, uint64_t offset) {
    struct stat found;
    if (!inside_fd(fd, &found)) return raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    long failed = due();
    if (failed) return failed;
    long result = raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result >= 0) note(kind, linked, NULL, (uint32_t)n, found.st_ino, offset, NULL, 0, 0);
    return result;
}

/* A copy inside the kernel would hide its bytes: callers then read and write themselves. */
static long refused(long n, long *a, int fd) {
    struct stat found;
    return inside_fd(fd, &found) ? -ENOSYS : raw(n, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static long performed(long n, long *a) {
    struct iovec one = {(void *)a[1], (size_t)a[2]};
    switch (n) {
    case SYS_open: return opened(n, a, AT_FDCWD, (char *)a[0], a[1]);
    case SYS_creat: return opened(n, a, AT_FDCWD, (char *)a[0], O_CREAT | O_TRUNC);
    case SYS_openat: return opened(n, a, a[0], (char *)a[1], a[2]);
    case SYS_write: return written(n, a, a[0], &one, 1, -1);
    case SYS_pwrite64: return written(n, a, a[0], &one, 1, a[3]);
    case SYS_writev: return written(n, a, a[0], (struct iovec *)a[1], a[2], -1);
    case SYS_pwritev: return written(n, a, a[0], (struct iovec *)a[1], a[2], a[3]);
    case SYS_rename: return named(RENAME, n, a, AT_FDCWD, (char *)a[0], AT_FDCWD, (char *)a[1]);
    case SYS_renameat: return named(RENAME, n, a, a[0], (char *)a[1], a[2], (char *)a[3]);
    case SYS_renameat2:
        if (a[4] & ~RENAME_NOREPLACE) return -EINVAL;
        return named(RENAME, n, a, a[0], (char *)a[1], a[2], (char *)a[3]);
    case SYS_link: return named(LINK, n, a, AT_FDCWD, (char *)a[0], AT_FDCWD, (char *)a[1]);
    case SYS_linkat: return named(LINK, n, a, a[0], (char *)a[1], a[2], (char *)a[3]);
    case SYS_unlink: return named(UNLINK, n, a, AT_FDCWD, (char *)a[0], 0, NULL);
    case SYS_unlinkat:
        return named(a[2] & AT_REMOVEDIR ? RMDIR : UNLINK, n, a, a[0], (char *)a[1], 0, NULL);
    case SYS_rmdir: return named(RMDIR, n, a, AT_FDCWD, (char *)a[0], 0, NULL);
    case SYS_mkdir: return named(MKDIR, n, a, AT_FDCWD, (char *)a[0], 0, NULL);
    case SYS_mkdirat: return named(MKDIR, n, a, a[0], (char *)a[1], 0, NULL);
    case SYS_symlink: return named(UNKNOWN, n, a, AT_FDCWD, (char *)a[1], 0, NULL);
    case SYS_symlinkat: return named(UNKNOWN, n, a, a[1], (char *)a[2], 0, NULL);
    case SYS_truncate: return named(UNKNOWN, n, a, AT_FDCWD, (char *)a[0], 0, NULL);
    case SYS_ftruncate: return on_fd(TRUNCATE, n, a, a[0], a[1]);
    case SYS_fsync:
    case SYS_fdatasync: return on_fd(SYNC, n, a, a[0], 0);
    case SYS_syncfs: return on_fd(SYNC_ALL, n, a, a[0], 0);
    case SYS_copy_file_range: return refused(n, a, a[2]);
    case SYS_sendfile: return refused(n, a, a[0]);
    case SYS_mmap: return on_fd(UNKNOWN, n, a, a[4], 0);
    case SYS_fallocate:
    case SYS_pwritev2: return on_fd(UNKNOWN, n, a, a[0], 0);
    default: return -ENOSYS;
    }
}

static void on_call(int number, siginfo_t *about, void *context) {
    (void)number;
    int saved = errno;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long a[6] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8], r[REG_R9]};
    pthread_mutex_lock(&order);
    r[REG_RAX] = performed(about->si_syscall, a);
    pthread_mutex_unlock(&order);
    errno = saved;
}

/* Note a step of the test, and how many calls were counted until then. */
void shim_mark(const char *text) {
    pthread_mutex_lock(&order);
    note(MARK, text, NULL, 0, 0, counted, NULL, 0, 0);
    pthread_mutex_unlock(&order);
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_ARG(i) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[i]))
#define GIVE(what) BPF_STMT(BPF_RET | BPF_K, what)
#define TRAP(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), GIVE(SECCOMP_RET_TRAP)
#define TRAP_IF(n, arg, bits)                                                                             \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 4), LOAD_ARG(arg),                                          \
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1), GIVE(SECCOMP_RET_TRAP), GIVE(SECCOMP_RET_ALLOW)

/* Begin: 0, or the error number of the step that is not allowed here. */
int shim_arm(const char *directory, int descriptor, long fail, long error, long kill) {
    strcpy(root, directory);
    root_bytes = strlen(root);
    log_fd = descriptor;
    fail_at = fail, fail_errno = error, kill_at = kill, counted = 0;
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigfillset(&action.sa_mask);
    sigdelset(&action.sa_mask, SIGSYS);
    if (sigaction(SIGSYS, &action, NULL) != 0) return errno;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    uint64_t passed = (uint64_t)shim_passed;
    struct sock_filter filter[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        GIVE(SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)passed, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(passed >> 32), 0, 1),
        GIVE(SECCOMP_RET_ALLOW),
        LOAD(nr),
        TRAP_IF(SYS_open, 1, O_CREAT | O_TRUNC),
        TRAP_IF(SYS_openat, 2, O_CREAT | O_TRUNC),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 6),
        LOAD_ARG(2),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_WRITE, 0, 3),
        LOAD_ARG(3),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_ANONYMOUS | MAP_PRIVATE, 1, 0),
        GIVE(SECCOMP_RET_TRAP),
        GIVE(SECCOMP_RET_ALLOW),
        TRAP(SYS_write), TRAP(SYS_pwrite64), TRAP(SYS_writev), TRAP(SYS_pwritev), TRAP(SYS_pwritev2),
        TRAP(SYS_creat), TRAP(SYS_rename), TRAP(SYS_renameat), TRAP(SYS_renameat2), TRAP(SYS_link),
        TRAP(SYS_linkat), TRAP(SYS_unlink), TRAP(SYS_unlinkat), TRAP(SYS_rmdir), TRAP(SYS_mkdir),
        TRAP(SYS_mkdirat), TRAP(SYS_symlink), TRAP(SYS_symlinkat), TRAP(SYS_truncate), TRAP(SYS_ftruncate),
        TRAP(SYS_fsync), TRAP(SYS_fdatasync), TRAP(SYS_syncfs), TRAP(SYS_fallocate), TRAP(SYS_sendfile),
        TRAP(SYS_copy_file_range), TRAP(SYS_openat2), TRAP(SYS_io_uring_setup),
        GIVE(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) ? errno : 0;
}
