package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pageSize     = 4096
	wordsPerPage = pageSize / 8
)

// area is memory with contents that are known: each page has a seed, and each
// word of it follows from that.
type area struct {
	words []uint64
	seeds []uint64 // of each page; 0 is a page of zeros
}

// memoryAnswers are those of main that are about memory.
var memoryAnswers = map[string]func(*http.Request) (string, error){
	"/make-memory":  makeMemory,
	"/check-memory": checkMemory,
	"/touch-memory": touchMemory,
	"/fork-memory":  forkMemory,
}

// areas are what the suite looks at after a restore, by name: private memory,
// shared memory, and a file in /dev/shm.
var areas = map[string]*area{}

// word is what stands at an index of a page. It is called after a fork, where
// no stack can grow.
//
//go:nosplit
func word(seed, i uint64) uint64 {
	if seed == 0 {
		return 0
	}
	x := (seed + i) * 0x9e3779b97f4a7c15
	x ^= x >> 29
	return x * 0xbf58476d1ce4e5b9
}

//go:nosplit
func fillPage(page []uint64, seed uint64) {
	for i := range page {
		page[i] = word(seed, uint64(i))
	}
}

//go:nosplit
func pageHas(page []uint64, seed uint64) bool {
	for i := range page {
		if page[i] != word(seed, uint64(i)) {
			return false
		}
	}
	return true
}

//go:nosplit
func (a *area) page(i int) []uint64 { return a.words[i*wordsPerPage : (i+1)*wordsPerPage] }

// check compares every page in an order of chance, so that windows are entered
// from all sides.
func (a *area) check() error {
	for _, i := range rand.Perm(len(a.seeds)) {
		if !pageHas(a.page(i), a.seeds[i]) {
			return fmt.Errorf("page %d of %d is not what was written, seed %d", i, len(a.seeds), a.seeds[i])
		}
	}
	return nil
}

func newArea(mb int, flags, fd int) (*area, error) {
	m, err := syscall.Mmap(fd, 0, mb<<20, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		return nil, err
	}
	a := &area{words: unsafe.Slice((*uint64)(unsafe.Pointer(&m[0])), len(m)/8), seeds: make([]uint64, len(m)/pageSize)}
	for i := range a.seeds {
		if i%7 == 3 {
			continue // a page that was never written
		}
		a.seeds[i] = 1 + rand.Uint64N(1<<40)
		fillPage(a.page(i), a.seeds[i])
	}
	return a, nil
}

// makeMemory makes the areas, mb megabytes of private memory and a quarter of
// that of each shared kind.
func makeMemory(r *http.Request) (string, error) {
	mb := number(r, "mb")
	shm, err := os.OpenFile("/dev/shm/area", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	defer shm.Close()
	if err := shm.Truncate(int64(mb/4) << 20); err != nil {
		return "", err
	}
	var errs []error
	for name, of := range map[string]struct{ mb, flags, fd int }{
		"private": {mb, syscall.MAP_PRIVATE | syscall.MAP_ANONYMOUS, -1},
		"shared":  {mb / 4, syscall.MAP_SHARED | syscall.MAP_ANONYMOUS, -1},
		"shm":     {mb / 4, syscall.MAP_SHARED, int(shm.Fd())},
	} {
		areas[name], err = newArea(of.mb, of.flags, of.fd)
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// checkMemory compares the areas, each page also with what a system call reads
// of it.
func checkMemory(*http.Request) (string, error) {
	for name, a := range areas {
		if err := a.check(); err != nil {
			return "", fmt.Errorf("%s memory: %w", name, err)
		}
	}
	text, err := os.ReadFile("/dev/shm/area")
	if err != nil {
		return "", err
	}
	a := areas["shm"]
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&text[0])), len(text)/8)
	for i, seed := range a.seeds {
		if !pageHas(words[i*wordsPerPage:(i+1)*wordsPerPage], seed) {
			return "", fmt.Errorf("page %d of /dev/shm/area is not what was written", i)
		}
	}
	return "", nil
}

// touchMemory reads some pages, and changes others: by stores, by system calls
// that write to memory which was never touched, and by dropping what they had.
func touchMemory(r *http.Request) (string, error) {
	pages, a := number(r, "pages"), areas["private"]
	source, err := os.CreateTemp("", "source")
	if err != nil {
		return "", err
	}
	defer os.Remove(source.Name())
	defer source.Close()
	block := make([]uint64, wordsPerPage)
	for n := range pages {
		i := rand.IntN(len(a.seeds))
		page, seed := a.page(i), 1+rand.Uint64N(1<<40)
		switch n % 4 {
		case 0:
			if !pageHas(page, a.seeds[i]) {
				return "", fmt.Errorf("page %d is not what was written", i)
			}
			continue
		case 1: // a store into one word, then the rest
			page[wordsPerPage/2]++
			fillPage(page, seed)
		case 2: // half a page, by the kernel, and the other half must stay
			fillPage(block, seed)
			half := block[:wordsPerPage/2]
			if _, err := source.WriteAt(bytesOf(half), 0); err != nil {
				return "", err
			}
			old := a.seeds[i]
			if _, err := source.ReadAt(bytesOf(page[:len(half)]), 0); err != nil {
				return "", err
			}
			for j := len(half); j < wordsPerPage; j++ {
				if page[j] != word(old, uint64(j)) {
					return "", fmt.Errorf("word %d of page %d changed by a read into the words before", j, i)
				}
			}
			fillPage(page, seed)
		case 3:
			if err := syscall.Madvise(bytesOf(page), syscall.MADV_DONTNEED); err != nil {
				return "", err
			}
			seed = 0
		}
		a.seeds[i] = seed
		if !pageHas(page, seed) {
			return "", fmt.Errorf("page %d is not what was just written", i)
		}
	}
	return "", nil
}

func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
}

// forkMemory forks children that compare all private memory while they and this
// process write to it, and write to what they share.
func forkMemory(r *http.Request) (string, error) {
	private, shared := areas["private"], areas["shared"]
	children := number(r, "children")
	var pids []int
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := range children {
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return "", errno
		}
		if pid == 0 {
			inChild(private, shared, uint64(n))
		}
		pids = append(pids, int(pid))
	}
	for i := 0; i < len(private.seeds); i += 3 {
		private.seeds[i] += 17
		fillPage(private.page(i), private.seeds[i])
	}
	var errs []error
	for n, pid := range pids {
		var status syscall.WaitStatus
		for {
			_, err := syscall.Wait4(pid, &status, 0, nil)
			if err != syscall.EINTR {
				errs = append(errs, err)
				break
			}
		}
		if !status.Exited() || status.ExitStatus() != 0 {
			errs = append(errs, fmt.Errorf("child %d ended with %#x", n, status))
		}
		shared.seeds[n] = 1000 + uint64(n)
		if !pageHas(shared.page(n), shared.seeds[n]) {
			errs = append(errs, fmt.Errorf("what child %d wrote to shared memory is not there", n))
		}
	}
	return "", errors.Join(errs...)
}

// inChild runs in a process that has nothing of Go's runtime but its memory.
//
//go:nosplit
func inChild(private, shared *area, n uint64) {
	failed := uintptr(0)
	pages := uint64(len(private.seeds))
	x := n*7919 + 1
	for range pages {
		x = x*6364136223846793005 + 1442695040888963407
		i := int((x >> 33) % pages)
		page, seed := private.page(i), private.seeds[i]
		if page[1] == word(seed+n+99, 1) {
			seed += n + 99 // its own work
		}
		if !pageHas(page, seed) {
			failed = 1
		}
		if x>>60 < 4 {
			fillPage(page, private.seeds[i]+n+99)
		}
	}
	fillPage(shared.page(int(n)), 1000+n)
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, failed, 0, 0) // does not return
	}
}

// remap maps, touches and unmaps memory, as many times as it is asked to.
func remap(r *http.Request) (string, error) {
	times, err := strconv.Atoi(r.FormValue("times"))
	if err != nil {
		return "", err
	}
	for range times {
		data, err := unix.Mmap(-1, 0, 16<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return "", err
		}
		data[0] = 1
		if err := unix.Munmap(data); err != nil {
			return "", err
		}
	}
	return "mapped", nil
}
