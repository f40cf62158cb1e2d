package desktop

import (
	"bytes"
	"encoding/binary"

	"github.com/klauspost/compress/zlib"
)

// tileSide is the side of the squares by which changes are counted, in pixels.
const tileSide = 64

// pixelBytes are blue, green, red and nothing.
const pixelBytes = 4

// frame is the picture of a screen.
type frame struct {
	w, h, columns int
	pix           []byte
	tiles         []tile
	seq           uint64 // of the newest change
}

// tile is a square of the picture, smaller at its right and its lower edge.
type tile struct {
	at       uint64 // its newest change
	packed   []byte // a rectangle as viewers get it
	packedAt uint64 // of which change
}

func newFrame(w, h int, seq uint64) *frame {
	f := &frame{w: w, h: h, columns: (w + tileSide - 1) / tileSide, pix: make([]byte, w*h*pixelBytes), seq: seq}
	f.tiles = make([]tile, f.columns*((h+tileSide-1)/tileSide))
	for i := range f.tiles {
		f.tiles[i].at = seq
	}
	return f
}

// holds reports whether a rectangle lies in the picture.
func (f *frame) holds(r rect) bool { return r.x+r.w <= f.w && r.y+r.h <= f.h }

// touch says that a rectangle has changed.
func (f *frame) touch(r rect) {
	if r.w == 0 || r.h == 0 {
		return
	}
	f.seq++
	for row := r.y / tileSide; row <= (r.y+r.h-1)/tileSide; row++ {
		for column := r.x / tileSide; column <= (r.x+r.w-1)/tileSide; column++ {
			f.tiles[row*f.columns+column].at = f.seq
		}
	}
}

// write puts whole rows of pixels at a place.
func (f *frame) write(x, y, w int, rows []byte) {
	for n := w * pixelBytes; len(rows) >= n && n > 0; rows, y = rows[n:], y+1 {
		copy(f.pix[(y*f.w+x)*pixelBytes:], rows[:n])
	}
}

// move copies a rectangle from another place of the picture, which may overlap.
func (f *frame) move(to rect, x, y int) {
	n := to.w * pixelBytes
	for i := range to.h {
		row := i
		if y < to.y {
			row = to.h - 1 - i
		}
		from := ((y+row)*f.w + x) * pixelBytes
		copy(f.pix[((to.y+row)*f.w+to.x)*pixelBytes:][:n], f.pix[from:from+n])
	}
}

// area is where a tile lies.
func (f *frame) area(i int) rect {
	x, y := i%f.columns*tileSide, i/f.columns*tileSide
	return rect{x, y, min(tileSide, f.w-x), min(tileSide, f.h-y)}
}

// packer makes rectangles of the encoding Tight. Each stands alone: it resets the
// stream that it uses, so that one that was packed for a viewer serves all.
type packer struct {
	rgb []byte
	out bytes.Buffer
	zip *zlib.Writer
}

const (
	tightFill  = 0x80 // one colour
	tightReset = 0x01 // stream 0 begins anew, and is used
	// tightPlain is how long pixels are at least that are compressed.
	tightPlain = 12
)

// tile returns a tile as a rectangle, which is kept until it changes.
func (p *packer) tile(f *frame, i int) []byte {
	t := &f.tiles[i]
	if t.packedAt == t.at && t.packed != nil {
		return t.packed
	}
	at := f.area(i)
	p.read(f, at)
	p.out.Reset()
	p.out.Write(at.head(encodingTight))
	switch {
	case plain(p.rgb):
		p.out.Write([]byte{tightFill, p.rgb[0], p.rgb[1], p.rgb[2]})
	case len(p.rgb) < tightPlain:
		p.out.WriteByte(tightReset)
		p.out.Write(p.rgb)
	default:
		p.compress()
	}
	t.packed, t.packedAt = bytes.Clone(p.out.Bytes()), t.at
	return t.packed
}

// read takes a rectangle's pixels as red, green and blue.
func (p *packer) read(f *frame, at rect) {
	p.rgb = p.rgb[:0]
	for y := at.y; y < at.y+at.h; y++ {
		row := f.pix[(y*f.w+at.x)*pixelBytes:][:at.w*pixelBytes]
		for ; len(row) > 0; row = row[pixelBytes:] {
			p.rgb = append(p.rgb, row[2], row[1], row[0])
		}
	}
}

func plain(rgb []byte) bool { return bytes.Equal(rgb[3:], rgb[:len(rgb)-3]) }

// compress adds the pixels in a stream of their own, with its length before it.
func (p *packer) compress() {
	var packed bytes.Buffer
	if p.zip == nil {
		p.zip, _ = zlib.NewWriterLevel(&packed, zlib.BestSpeed) // the level is a constant
	} else {
		p.zip.Reset(&packed)
	}
	_, _ = p.zip.Write(p.rgb) // a buffer takes all
	_ = p.zip.Close()
	p.out.WriteByte(tightReset)
	n := packed.Len()
	for ; n > 0x7f; n >>= 7 {
		p.out.WriteByte(byte(n) | 0x80)
	}
	p.out.WriteByte(byte(n))
	p.out.Write(packed.Bytes())
}

// raw makes a rectangle of pixels as a viewer wants them.
func (f *frame) raw(i int, as pixelFormat, out []byte) []byte {
	at := f.area(i)
	out = append(out, at.head(encodingRaw)...)
	for y := at.y; y < at.y+at.h; y++ {
		row := f.pix[(y*f.w+at.x)*pixelBytes:][:at.w*pixelBytes]
		for ; len(row) > 0; row = row[pixelBytes:] {
			v := uint32(row[2])<<as.red | uint32(row[1])<<as.green | uint32(row[0])<<as.blue
			if as.bigEndian {
				out = binary.BigEndian.AppendUint32(out, v)
			} else {
				out = binary.LittleEndian.AppendUint32(out, v)
			}
		}
	}
	return out
}

// rect is a part of a picture, in pixels.
type rect struct{ x, y, w, h int }

// head is what stands before the content of a rectangle.
func (r rect) head(encoding int32) []byte {
	out := make([]byte, 0, 12)
	for _, n := range []int{r.x, r.y, r.w, r.h} {
		out = binary.BigEndian.AppendUint16(out, uint16(n))
	}
	return binary.BigEndian.AppendUint32(out, uint32(encoding))
}
