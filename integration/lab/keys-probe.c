/* What a process may do that no cgroup bounds: a line for each, with 0 or the errno. Linked statically: it runs in any image. */
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    long key = syscall(SYS_add_key, "user", "probe", "x", 1, -3 /* KEY_SPEC_SESSION_KEYRING */);
    printf("add_key %d\n", key < 0 ? errno : 0);
    return 0;
}
