/* Fills what the kernel shares among all pods, and holds it: fill keys BYTES GO | inotify | aio | ptys | files COUNT.

Keys: those of root up to BYTES; once the file GO is there, as many as it takes. Prints the errno that ended it, or 0.
Linked statically: it runs in any image. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static char payload[30000];
static long made;

static int add(size_t size) {
    char name[32];
    snprintf(name, sizeof name, "fill-%ld", made++);
    return syscall(SYS_add_key, "user", name, payload, size, -3 /* KEY_SPEC_SESSION_KEYRING */) < 0 ? errno : 0;
}

static void keys(long bytes, const char *go) {
    int error = 0;
    for (long left = bytes; left > 0 && !error; left -= sizeof payload) error = add(sizeof payload);
    printf("some %d\n", error);
    fflush(stdout);
    while (!error && access(go, F_OK)) usleep(20000);
    const size_t sizes[] = {sizeof payload, 1000, 1};
    for (int i = 0; i < 3 && error != EPERM; i++)
        do error = add(sizes[i]); while (!error);
    printf("full %d\n", error);
    fflush(stdout);
    for (;; usleep(1000)) add(1); /* what others have given back */
}

static int one(const char *what) {
    unsigned long context = 0;
    long made = -1;
    if (!strcmp(what, "inotify")) made = syscall(SYS_inotify_init1, 0);
    if (!strcmp(what, "aio")) made = syscall(SYS_io_setup, 1024, &context);
    if (!strcmp(what, "ptys")) made = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    if (!strcmp(what, "files")) made = open("/dev/null", O_RDONLY);
    return made < 0 ? errno : 0;
}

int main(int count, char **words) {
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    int error = 0;
    if (!strcmp(words[1], "keys")) keys(atol(words[2]), words[3]);
    for (long left = count > 2 ? atol(words[2]) : 1L << 30; left > 0 && !error; left--) error = one(words[1]);
    printf("full %d\n", error);
    fflush(stdout);
    sleep(600);
    return 0;
}
