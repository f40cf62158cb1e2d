package erofs

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// depthMost bounds how deep directories lie in each other.
const depthMost = 4096

// image is an image in memory.
type image struct {
	file      *os.File
	bytes     []byte
	meta      uint64
	buildTime time.Time
	nodes     map[uint64]*Node // files that were met, for hard links
}

// Open reads the tree of an image. Contents stay in the file, which Close lets
// go of. Errors have ErrFormat where the image is at fault.
func Open(path string) (*Tree, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if st.Size() < superOffset+superSize {
		f.Close()
		return nil, bad("it has only %d bytes", st.Size())
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, err
	}
	defer func() { _ = unix.Munmap(data) }()
	root, err := load(f, data)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Tree{root: root, image: f, close: []func() error{f.Close}}, nil
}

func load(f *os.File, data []byte) (*Node, error) {
	super := data[superOffset:]
	switch {
	case le.Uint32(super) != magic:
		return nil, bad("it is no EROFS")
	case super[12] != 12:
		return nil, bad("its blocks are of 2^%d bytes", super[12])
	case le.Uint32(super[80:]) != 0:
		return nil, bad("it has features %#x", le.Uint32(super[80:]))
	}
	i := &image{
		file: f, bytes: data, meta: uint64(le.Uint32(super[40:])) * blockSize,
		buildTime: time.Unix(int64(le.Uint64(super[24:])), int64(le.Uint32(super[32:]))),
		nodes:     map[uint64]*Node{},
	}
	root, err := i.node(uint64(le.Uint16(super[14:])), 0)
	if err == nil && !root.IsDir() {
		err = bad("its root is no directory")
	}
	return root, err
}

// at returns n bytes at an offset.
func (i *image) at(off, n uint64) ([]byte, error) {
	if size := uint64(len(i.bytes)); off > size || n > size-off {
		return nil, bad("%d bytes at %d lie outside", n, off)
	}
	return i.bytes[off : off+n], nil
}

// node reads an inode and all below it.
func (i *image) node(nid uint64, depth int) (*Node, error) {
	if n := i.nodes[nid]; n != nil && !n.IsDir() {
		return n, nil
	} else if n != nil || depth > depthMost {
		return nil, bad("directory %d is in itself", nid)
	}
	off := i.meta + nid*slot
	head, err := i.at(off, compactSize)
	if err != nil {
		return nil, err
	}
	format := le.Uint16(head)
	n := &Node{Mode: uint32(le.Uint16(head[4:]))}
	raw, headSize := le.Uint32(head[16:]), uint64(compactSize)
	if format&layoutExtended == 0 {
		n.Size, n.Mtime = int64(le.Uint32(head[8:])), i.buildTime
		n.UID, n.GID = uint32(le.Uint16(head[24:])), uint32(le.Uint16(head[26:]))
	} else {
		headSize = extendedSize
		if head, err = i.at(off, extendedSize); err != nil {
			return nil, err
		}
		n.Size = int64(le.Uint64(head[8:]))
		n.UID, n.GID = le.Uint32(head[24:]), le.Uint32(head[28:])
		n.Mtime = time.Unix(int64(le.Uint64(head[32:])), int64(le.Uint32(head[40:])))
	}
	inline := format&dataMask == dataInline
	switch {
	case le.Uint16(head[2:]) != 0:
		return nil, bad("file %d has extended attributes", nid)
	case format&dataMask != dataPlain && !inline:
		return nil, bad("file %d has data of kind %d", nid, format&dataMask>>1)
	case n.Size < 0:
		return nil, bad("file %d has a size of %d", nid, n.Size)
	}
	i.nodes[nid] = n
	plain := uint64(raw) * blockSize
	switch n.Mode & typeMask {
	case typeRegular:
		if inline {
			return nil, bad("file %d has its content inside", nid)
		}
		if _, err := i.at(plain, uint64(n.Size)); err != nil {
			return nil, err
		}
		n.File, n.Offset, n.Padded = i.file, int64(plain), true
	case typeSymlink, typeDir:
		content, err := i.content(n, plain, off+headSize, inline)
		if err != nil {
			return nil, err
		}
		if n.IsSymlink() {
			n.Target, n.Size = string(content), 0
			return n, nil
		}
		n.Size = 0
		return n, i.children(n, nid, content, depth)
	case typeChar, typeBlock:
		n.Rdev, n.Size = raw, 0
	default:
		n.Size = 0
	}
	return n, nil
}

// content collects what a link or directory holds: whole blocks, then a tail
// that may lie behind its inode.
func (i *image) content(n *Node, plain, behind uint64, inline bool) ([]byte, error) {
	tail := uint64(0)
	if inline {
		tail = uint64(n.Size) % blockSize
	}
	head, err := i.at(plain, uint64(n.Size)-tail)
	if err != nil && uint64(n.Size) > tail {
		return nil, err
	}
	end, err := i.at(behind, tail)
	return append(bytes.Clone(head), end...), err
}

func (i *image) children(dir *Node, nid uint64, content []byte, depth int) error {
	dir.children = map[string]*Node{}
	for ; len(content) > 0; content = content[min(blockSize, len(content)):] {
		block := content[:min(blockSize, len(content))]
		if len(block) < direntSize {
			return bad("directory %d is cut off", nid)
		}
		first := int(le.Uint16(block[8:]))
		if first < direntSize || first%direntSize != 0 || first > len(block) {
			return bad("directory %d is damaged", nid)
		}
		for at := 0; at < first; at += direntSize {
			begin, end := int(le.Uint16(block[at+8:])), len(block)
			if at+direntSize < first {
				end = int(le.Uint16(block[at+direntSize+8:]))
			}
			if begin < first || begin > end || end > len(block) {
				return bad("directory %d is damaged", nid)
			}
			name, _, _ := bytes.Cut(block[begin:end], []byte{0})
			if s := string(name); s == "." || s == ".." {
				continue
			} else if err := checkName(s); err != nil {
				return bad("%v", err)
			}
			child, err := i.node(le.Uint64(block[at:]), depth+1)
			if err != nil {
				return err
			}
			dir.children[string(name)] = child
		}
	}
	return nil
}
