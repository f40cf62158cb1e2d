// Package erofs reads root images into trees that can be changed, and writes
// trees as images. It knows the part of EROFS that gVisor reads: nothing is
// compressed, there are no extended attributes, and a file's content begins
// at a block.
//
// A tree lives in memory and refers to content in the files that it came
// from; nothing of a guest's is ever laid out on the host's file system, so
// no link of its making can lead anywhere. Equal trees make equal images.
package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	blockSize   = 4096
	superOffset = 1024
	superSize   = 128
	magic       = 0xe0f5e1e2
	slot        = 32 // inode numbers count these

	compactSize  = 32
	extendedSize = 64
	direntSize   = 12
	nameMost     = 255

	layoutExtended = 1      // bit 0 of an inode's format
	dataPlain      = 0 << 1 // bits 1–3
	dataInline     = 2 << 1
	dataMask       = 7 << 1
)

// The types in a mode.
const (
	typeMask    = 0xf000
	typeFIFO    = 0x1000
	typeChar    = 0x2000
	typeDir     = 0x4000
	typeBlock   = 0x6000
	typeRegular = 0x8000
	typeSymlink = 0xa000
	typeSocket  = 0xc000
)

// direntTypes are how a directory's entries say what they are.
var direntTypes = map[uint32]byte{
	typeRegular: 1, typeDir: 2, typeChar: 3, typeBlock: 4, typeFIFO: 5, typeSocket: 6, typeSymlink: 7,
}

// uuid is the same in every image, so that equal trees are equal images.
var uuid = [16]byte{0x6b, 0x9f, 0x1d, 0x2c, 0x0c, 0x4e, 0x4b, 0x7a, 0x9a, 0x52, 0x0d, 0x4e, 0xc4, 0xa7, 0xc0, 0x02}

var (
	le = binary.LittleEndian

	// ErrFormat is in every error of an image that cannot be read.
	ErrFormat = errors.New("not an image that can be read")
)

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
}

func blocks(size int64) int64 { return (size + blockSize - 1) / blockSize }
