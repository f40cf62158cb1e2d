package main

import (
	"net/http"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0
	futexWake = 1
)

// awaitWord waits, as a mutex in shared memory does, until the first word of a file is
// no more zero, and makes it zero again.
func awaitWord(r *http.Request) (string, error) {
	return "", inWord(r.FormValue("path"), func(word *uint32) error {
		for !atomic.CompareAndSwapUint32(word, 1, 0) {
			_, _, err := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, 0, 0, 0, 0)
			if err != 0 && err != unix.EAGAIN && err != unix.EINTR {
				return err
			}
		}
		return nil
	})
}

// setWord makes the first word of a file one, and wakes who waits for it.
func setWord(r *http.Request) (string, error) {
	return "", inWord(r.FormValue("path"), func(word *uint32) error {
		atomic.StoreUint32(word, 1)
		_, _, err := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1, 0, 0, 0)
		if err != 0 {
			return err
		}
		return nil
	})
}

// inWord does something with the first word of a file, in shared memory.
func inWord(path string, do func(word *uint32) error) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	memory, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(memory) }()
	return do((*uint32)(unsafe.Pointer(&memory[0])))
}
