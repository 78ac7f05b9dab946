// The floor of the proxy's benchmark: what it costs to carry bytes between two sockets, and to look at none of them.
//
// main LISTEN RUNTIME: two unix sockets. A connection to the runtime for each of a client's. It reads and writes as the
// relay does, one read and one write for what has come, and ends at any error.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 1024, READ_BYTES = 256 * 1024 };

static int other[MOST_CONNECTIONS]; // the other end of each descriptor's pipe
static char bytes[READ_BYTES];

static void need(int done, const char *what) {
  if (!done) {
    perror(what);
    exit(1);
  }
}

static struct sockaddr_un address(const char *path) {
  struct sockaddr_un found = {.sun_family = AF_UNIX};
  need(strlen(path) < sizeof found.sun_path, "the path of a socket");
  strcpy(found.sun_path, path);
  return found;
}

static void watch(int epoll, int descriptor) {
  struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
  need(descriptor < MOST_CONNECTIONS && !epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
}

static void join(int epoll, int client, const struct sockaddr_un *runtime) {
  int up = socket(AF_UNIX, SOCK_STREAM, 0);
  need(up >= 0 && !connect(up, (const struct sockaddr *)runtime, sizeof *runtime), "the runtime's socket");
  watch(epoll, client);
  watch(epoll, up);
  other[client] = up;
  other[up] = client;
}

static void carry(int from) {
  ssize_t size = read(from, bytes, sizeof bytes);
  if (size <= 0) {
    close(other[from]);
    close(from);
    return;
  }
  for (ssize_t at = 0, written; at < size; at += written)
    need((written = write(other[from], bytes + at, size - at)) > 0, "write");
}

int main(int count, char **arguments) {
  need(count == 3, "LISTEN RUNTIME");
  struct sockaddr_un own = address(arguments[1]), runtime = address(arguments[2]);
  int epoll = epoll_create1(0), listening = socket(AF_UNIX, SOCK_STREAM, 0);
  need(!bind(listening, (struct sockaddr *)&own, sizeof own) && !listen(listening, 16), arguments[1]);
  watch(epoll, listening);
  for (;;) {
    struct epoll_event events[64];
    int ready = epoll_wait(epoll, events, 64, -1);
    for (int number = 0; number < ready; number++) {
      int descriptor = events[number].data.fd;
      if (descriptor == listening)
        join(epoll, accept(listening, NULL, NULL), &runtime);
      else
        carry(descriptor);
    }
  }
}
