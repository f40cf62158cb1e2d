/* The guest of the samples in internal/machine/engine/runsc/testdata: small, so that a
 * snapshot of it can be kept for every format there ever was. It answers each
 * connection to port 8080 with how many there have been, and whether its
 * files are older than its memory.
 *
 *     gcc -Os -static -nostdlib -fno-stack-protector -o guest guest.c
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static long call(long n, long a, long b, long c) {
	register long ret asm("rax") = n;
	asm volatile("syscall" : "+r"(ret) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return ret;
}

__attribute__((force_align_arg_pointer)) void _start(void) {
	char answer[] = "0 first\n";
	long note = call(SYS_open, (long)"/tmp/note", O_CREAT | O_EXCL | O_WRONLY, 0600);
	if (note < 0)
		__builtin_memcpy(answer + 2, "again", 5);
	else
		call(SYS_write, note, (long)"kept\n", 5);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = __builtin_bswap16(8080)};
	long port = call(SYS_socket, AF_INET, SOCK_STREAM, 0);
	call(SYS_bind, port, (long)&at, sizeof at);
	call(SYS_listen, port, 16, 0);
	for (;;) {
		long peer = call(SYS_accept, port, 0, 0);
		answer[0]++;
		call(SYS_write, peer, (long)answer, sizeof answer - 1);
		call(SYS_close, peer, 0, 0);
	}
}
