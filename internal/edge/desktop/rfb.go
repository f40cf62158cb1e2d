package desktop

import (
	"encoding/binary"
	"io"

	"github.com/cay-run/cay"
)

// The messages of RFB 3.8, as RFC 6143 numbers them.
const (
	toServerFormat    = 0
	toServerEncodings = 2
	toServerRequest   = 3
	toServerKey       = 4
	toServerPointer   = 5
	toServerCut       = 6

	toClientUpdate  = 0
	toClientColours = 1
	toClientBell    = 2
	toClientCut     = 3

	encodingRaw   = 0
	encodingCopy  = 1
	encodingTight = 7
	encodingSize  = -223 // DesktopSize, no encoding: the picture has another size

	securityNone = 1
	versionText  = "RFB 003.008\n"
)

// maxText bounds names, reasons and what is cut and pasted, in bytes.
const maxText = 256 << 10

// pixelFormat is how a viewer wants pixels, of four bytes: by how much each colour is
// shifted.
type pixelFormat struct {
	red, green, blue uint8
	bigEndian        bool
}

// ours is how the picture is kept, and what an X server has.
var ours = pixelFormat{red: 16, green: 8, blue: 0}

// wire is a format as messages have it.
func (p pixelFormat) wire() []byte {
	big := byte(0)
	if p.bigEndian {
		big = 1
	}
	return []byte{32, 24, big, 1, 0, 255, 0, 255, 0, 255, p.red, p.green, p.blue, 0, 0, 0}
}

// formatOf reads a format. One of other than 8 bits for a colour is refused.
func formatOf(b []byte) (pixelFormat, error) {
	p := pixelFormat{red: b[10], green: b[11], blue: b[12], bigEndian: b[2] != 0}
	max := func(i int) bool { return b[i] == 0 && b[i+1] == 255 }
	if b[0] != 32 || b[3] == 0 || !max(4) || !max(6) || !max(8) || p.red > 24 || p.green > 24 || p.blue > 24 {
		return p, cay.Errorf(cay.Invalid, "pixels must have four bytes, and 8 bits for each colour")
	}
	return p, nil
}

// reader reads numbers of a message, until the first error.
type reader struct {
	io.Reader
	err error
	buf [20]byte
}

// next returns so many bytes, at most 20, which are valid until the next call.
func (r *reader) next(n int) []byte {
	if r.err == nil {
		_, r.err = io.ReadFull(r.Reader, r.buf[:n])
	}
	if r.err != nil {
		clear(r.buf[:n])
	}
	return r.buf[:n]
}

func (r *reader) u8() int  { return int(r.next(1)[0]) }
func (r *reader) u16() int { return int(binary.BigEndian.Uint16(r.next(2))) }
func (r *reader) u32() int { return int(binary.BigEndian.Uint32(r.next(4))) }
func (r *reader) s32() int { return int(int32(binary.BigEndian.Uint32(r.next(4)))) }

func (r *reader) rect() rect {
	b := r.next(8)
	n := func(i int) int { return int(binary.BigEndian.Uint16(b[i:])) }
	return rect{n(0), n(2), n(4), n(6)}
}

// skip passes over so many bytes.
func (r *reader) skip(n int) {
	if r.err == nil {
		_, r.err = io.CopyN(io.Discard, r.Reader, int64(n))
	}
}

// text reads a text with its length before it.
func (r *reader) text() []byte {
	n := r.u32()
	if r.err == nil && n > maxText {
		r.err = cay.Errorf(cay.Invalid, "a text of more than %d bytes", maxText)
	}
	if r.err != nil {
		return nil
	}
	out := make([]byte, n)
	_, r.err = io.ReadFull(r.Reader, out)
	return out
}
