package erofs

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// placed is where a node goes in a new image.
type placed struct {
	*Node
	parent  *placed
	entries []entry // of a directory, sorted
	size    int64   // of what the image holds for it
	links   uint32
	number  uint32
	offset  int64 // of its inode
	inline  bool  // the tail of its data lies behind the inode
	block   int64 // where the rest begins
}

type entry struct {
	name string
	node *placed
}

// layout is an image that is about to be written.
type layout struct {
	all   []*placed // in the order of their inodes; the root first
	files []*placed // with content, in the order in which that is copied
	start int64     // block at which what is new begins: 0, or behind an image that stays
	meta  int64     // bytes
	total int64     // blocks
}

// Write writes the tree as an image into an empty file. Contents are copied
// inside the kernel, and shared where the file system can.
func (t *Tree) Write(ctx context.Context, f *os.File) error {
	l, err := plan(t.root, nil, 0)
	if err != nil {
		return err
	}
	return l.write(ctx, f)
}

// Extend writes the tree into the image that it was read from. No sandbox may
// use the image meanwhile, and after an error it is not one any more. Contents
// that were there stay where they are; new ones go behind them, as do all
// directories. Removed files stay in the image file, out of sight.
func (t *Tree) Extend(ctx context.Context, f *os.File) error {
	if t.image == nil {
		return errors.New("the tree was read from no image")
	}
	from, err := t.image.Stat()
	if err != nil {
		return err
	}
	if to, err := f.Stat(); err != nil || !os.SameFile(from, to) {
		return errors.Join(err, errors.New("the tree was read from another image"))
	}
	l, err := plan(t.root, t.image, blocks(from.Size()))
	if err != nil {
		return err
	}
	return l.write(ctx, f)
}

func (l *layout) write(ctx context.Context, f *os.File) error {
	if err := f.Truncate(l.total * blockSize); err != nil {
		return err
	}
	head := make([]byte, blocks(l.meta)*blockSize)
	for _, p := range l.all {
		if err := p.write(head, f); err != nil {
			return err
		}
	}
	if _, err := f.WriteAt(head, l.start*blockSize); err != nil {
		return err
	}
	if err := l.copy(ctx, f); err != nil {
		return err
	}
	super := make([]byte, superSize)
	l.super(super)
	_, err := f.WriteAt(super, superOffset)
	return err
}

// plan gives everything its place, from a block on. Contents in a file that is
// kept have theirs.
func plan(root *Node, kept *os.File, start int64) (*layout, error) {
	l := &layout{start: start, meta: superOffset + superSize}
	if start > 0 {
		l.meta = extendedSize // no inode has the number 0
	}
	seen := map[*Node]*placed{}
	l.add(root, nil, seen)
	for _, p := range l.all {
		p.measure()
		tail := int64(0)
		if p.inline {
			tail = p.size % blockSize
		}
		if l.meta%blockSize+extendedSize+tail > blockSize {
			l.meta = blocks(l.meta) * blockSize
		}
		p.offset = l.meta
		l.meta += extendedSize + (tail+extendedSize-1)/extendedSize*extendedSize
	}
	next := start + blocks(l.meta)
	for _, p := range l.all { // directories together: they are read first
		if p.IsRegular() {
			switch {
			case p.Size == 0:
			case kept != nil && p.File == kept:
				p.block = p.Offset / blockSize
			default:
				l.files = append(l.files, p)
			}
			continue
		}
		p.block = next
		next += blocks(p.size)
		if p.inline {
			next--
		}
	}
	l.order()
	for _, p := range l.files {
		p.block = next
		next += blocks(p.Size)
	}
	l.total = next
	if l.total > math.MaxUint32 || len(l.all) > math.MaxInt32 {
		return nil, errors.New("the tree is too large for an image")
	}
	return l, nil
}

// order sorts files as their contents lie where they come from: most of a new
// image is then one copy of a run of the old one.
func (l *layout) order() {
	sources := map[*os.File]int{}
	for _, p := range l.files {
		if _, ok := sources[p.File]; !ok {
			sources[p.File] = len(sources)
		}
	}
	slices.SortStableFunc(l.files, func(a, b *placed) int {
		return cmp.Or(cmp.Compare(sources[a.File], sources[b.File]), cmp.Compare(a.Offset, b.Offset))
	})
}

// add places a node and all below it.
func (l *layout) add(n *Node, parent *placed, seen map[*Node]*placed) *placed {
	if p := seen[n]; p != nil {
		p.links++
		return p
	}
	p := &placed{Node: n, parent: parent, links: 1, number: uint32(len(l.all) + 1)}
	seen[n] = p
	l.all = append(l.all, p)
	if !n.IsDir() {
		return p
	}
	if parent == nil {
		p.parent = p
	}
	p.links = 2
	p.entries = append(p.entries, entry{".", p}, entry{"..", p.parent})
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		child := l.add(n.children[name], p, seen)
		p.entries = append(p.entries, entry{name, child})
		if child.IsDir() {
			p.links++
		}
	}
	slices.SortFunc(p.entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return p
}

// measure finds the size of what the image holds for a node.
func (p *placed) measure() {
	switch {
	case p.IsRegular():
		p.size = p.Size
		return
	case p.IsSymlink():
		p.size = int64(len(p.Target))
	case p.IsDir():
		used := int64(0)
		for _, e := range p.entries {
			need := int64(direntSize + len(e.name))
			if used%blockSize+need > blockSize {
				used = blocks(used) * blockSize
			}
			used += need
		}
		p.size = used
	}
	tail := p.size % blockSize
	p.inline = tail > 0 && tail+extendedSize <= blockSize
}

// content is what a directory or link holds.
func (p *placed) content() []byte {
	if p.IsSymlink() {
		return []byte(p.Target)
	}
	out := make([]byte, 0, p.size)
	for rest := p.entries; len(rest) > 0; {
		n, used := 0, 0
		for n < len(rest) && used+direntSize+len(rest[n].name) <= blockSize {
			used += direntSize + len(rest[n].name)
			n++
		}
		block := make([]byte, used, blockSize)
		at := n * direntSize
		for i, e := range rest[:n] {
			d := block[i*direntSize:]
			le.PutUint64(d, uint64(e.node.offset/slot))
			le.PutUint16(d[8:], uint16(at))
			d[10] = direntTypes[e.node.Mode&typeMask]
			at += copy(block[at:], e.name)
		}
		if rest = rest[n:]; len(rest) > 0 {
			block = block[:blockSize]
		}
		out = append(out, block...)
	}
	return out
}

func (l *layout) super(b []byte) {
	le.PutUint32(b, magic)
	b[12] = 12 // bits of a block's size
	le.PutUint16(b[14:], uint16(l.all[0].offset/slot))
	le.PutUint64(b[16:], uint64(len(l.all)))
	le.PutUint32(b[36:], uint32(l.total))
	le.PutUint32(b[40:], uint32(l.start))
	copy(b[48:], uuid[:])
}

// write puts an inode into the image's head, with what belongs to it but for
// a file's content.
func (p *placed) write(head []byte, f *os.File) error {
	b := head[p.offset:]
	format := uint16(layoutExtended | dataPlain)
	if p.inline {
		format = layoutExtended | dataInline
	}
	le.PutUint16(b, format)
	le.PutUint16(b[4:], uint16(p.Mode))
	le.PutUint64(b[8:], uint64(p.size))
	raw := uint32(p.block)
	if t := p.Mode & typeMask; t == typeChar || t == typeBlock {
		raw = p.Rdev
	}
	le.PutUint32(b[16:], raw)
	le.PutUint32(b[20:], p.number)
	le.PutUint32(b[24:], p.UID)
	le.PutUint32(b[28:], p.GID)
	le.PutUint64(b[32:], uint64(p.Mtime.Unix()))
	le.PutUint32(b[40:], uint32(p.Mtime.Nanosecond()))
	le.PutUint32(b[44:], p.links)
	if p.IsRegular() || p.size == 0 {
		return nil
	}
	content := p.content()
	if p.inline {
		cut := p.size - p.size%blockSize
		copy(b[extendedSize:], content[cut:])
		content = content[:cut]
	}
	if len(content) == 0 {
		return nil
	}
	_, err := f.WriteAt(content, p.block*blockSize)
	return err
}

// copy brings the contents of files, in runs as long as they come.
func (l *layout) copy(ctx context.Context, f *os.File) error {
	for i := 0; i < len(l.files); {
		if err := ctx.Err(); err != nil {
			return err
		}
		first := l.files[i]
		size := first.Size
		for i++; i < len(l.files); i++ {
			prev, next := l.files[i-1], l.files[i]
			if !prev.Padded || !next.Padded || next.File != prev.File || next.Offset != prev.Offset+blocks(prev.Size)*blockSize {
				break
			}
			size = next.Offset + next.Size - first.Offset
		}
		if err := copyRange(f, first.block*blockSize, first.File, first.Offset, size); err != nil {
			return fmt.Errorf("copy a file's content: %w", err)
		}
	}
	return nil
}

// copyRange copies between files, by the kernel where it can.
func copyRange(to *os.File, at int64, from *os.File, off, size int64) error {
	for size > 0 {
		n, err := unix.CopyFileRange(int(from.Fd()), &off, int(to.Fd()), &at, int(min(size, 1<<30)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
			w := bufio.NewWriterSize(io.NewOffsetWriter(to, at), 1<<20)
			if _, err := io.CopyN(w, io.NewSectionReader(from, off, size), size); err != nil {
				return err
			}
			return w.Flush()
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		size -= int64(max(n, 0))
	}
	return nil
}
