package disk

import (
	"cmp"
	"os"
	"slices"
	"syscall"
	"unsafe"
)

// Extent is a run of blocks of a disk.
type Extent struct{ Start, Bytes int64 }

// The kernel's ioctl that tells where on the disk a file is, and its answer
// (linux/fiemap.h).
const (
	fiemapRequest = 0xc020660b
	fiemapUnknown = 0x2 | 0x4 // not on the disk yet
	fiemapLast    = 0x1
	fiemapAtOnce  = 200
)

type fiemap struct {
	start, length        uint64
	flags, mapped, count uint32
	_                    uint32
	extents              [fiemapAtOnce]fiemapExtent
}

type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// Extents returns the places of a file on its disk, which show the blocks that
// files share; an error means that the file system does not tell. Data without
// a place yet is left out.
func Extents(path string) ([]Extent, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Extent
	ask := new(fiemap)
	for next := uint64(0); ; {
		*ask = fiemap{start: next, length: ^uint64(0) - next, count: fiemapAtOnce}
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), fiemapRequest, uintptr(unsafe.Pointer(ask))); errno != 0 {
			return nil, errno
		}
		for _, e := range ask.extents[:min(ask.mapped, fiemapAtOnce)] {
			if e.flags&fiemapUnknown == 0 {
				out = append(out, Extent{int64(e.physical), int64(e.length)})
			}
			next = e.logical + e.length
			if e.flags&fiemapLast != 0 {
				return out, nil
			}
		}
		if ask.mapped == 0 {
			return out, nil
		}
	}
}

// Shares says, of the parts of a disk that each of several owners has, how much
// is that owner's alone and how much other owners have too. A part that an owner
// has twice counts once.
func Shares(all [][]Extent) (own, shared []int64) {
	own, shared = make([]int64, len(all)), make([]int64, len(all))
	type edge struct {
		at   int64
		who  int
		more int // 1 where an extent begins, -1 where it ends
	}
	var edges []edge
	for who, extents := range all {
		for _, e := range extents {
			edges = append(edges, edge{e.Start, who, 1}, edge{e.Start + e.Bytes, who, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	here := map[int]int{} // how many extents each has at this place
	last := int64(0)
	for _, e := range edges {
		for who := range here {
			if len(here) == 1 {
				own[who] += e.at - last
			} else {
				shared[who] += e.at - last
			}
		}
		if here[e.who] += e.more; here[e.who] == 0 {
			delete(here, e.who)
		}
		last = e.at
	}
	return own, shared
}
