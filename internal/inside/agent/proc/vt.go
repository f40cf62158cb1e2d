package proc

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
)

const (
	enq = 0x05
	bel = 0x07
	can = 0x18
	sub = 0x1a
	esc = 0x1b

	// c1 is the first byte of U+0080 to U+00BF, whose first 32 control a terminal.
	c1 = 0xc2

	// heldMax bounds a sequence that vt passes on; a longer one is dropped.
	heldMax = 4 << 10
	// modesMax bounds the modes that vt remembers, and modeMax their numbers.
	modesMax = 64
	modeMax  = 9999
)

// vt reads the output of a terminal as a terminal does, to the extent that
// sequences are told from text (ECMA-48, and xterm's control sequences). It
// remembers the private modes that are set, and passes on what asks for no answer.
type vt struct {
	state vtState
	half  bool   // the byte before was c1
	held  []byte // the sequence that is being read
	long  bool   // it is longer than heldMax
	modes modes
}

type vtState int

const (
	vtText      vtState = iota
	vtEscape            // after ESC
	vtCSI               // a control sequence, to its final byte
	vtString            // OSC, DCS and others, to their terminator
	vtStringEnd         // ESC in a string: its terminator, or another sequence
)

// modes are private modes by number, and whether they are set.
type modes map[int]bool

// clone is a copy that shares nothing.
func (v *vt) clone() vt {
	return vt{state: v.state, half: v.half, held: bytes.Clone(v.held), long: v.long, modes: maps.Clone(v.modes)}
}

// settle reads on until a sequence that has begun, or a character, is whole; it
// returns how many bytes that were.
func (v *vt) settle(b []byte) (n int) {
	for n < len(b) && (v.half || v.state != vtText) {
		v.read(b[n:n+1], nil)
		n++
	}
	for rest := 0; n < len(b) && b[n]&0xc0 == 0x80 && rest < 3; rest++ {
		n++
	}
	return n
}

// read reads b and appends what asks for no answer to out, where out is not nil.
// A sequence that is not at its end is held.
func (v *vt) read(b, out []byte) []byte {
	for i := 0; i < len(b); {
		if v.state == vtText && !v.half {
			end := i
			for end < len(b) && b[end] != esc && b[end] != c1 && b[end] != enq {
				end++
			}
			out = pass(out, b[i:end])
			if i = end; i == len(b) {
				return out
			}
		}
		c := b[i]
		i++
		switch {
		case v.half && c&0xe0 == 0x80: // U+0080 to U+009F
			v.half = false
			out = v.control(c, out)
			continue
		case v.half && c&0xc0 == 0x80:
			v.half = false
			out = v.step(c, v.step(c1, out))
			continue
		case v.half: // no character: it could become one with a later byte
			v.half = false
		}
		if c == c1 {
			v.half = true
			continue
		}
		out = v.step(c, out)
	}
	return out
}

// rest is what is held.
func (v *vt) rest() []byte {
	if v.half {
		return append(bytes.Clone(v.held), c1)
	}
	return v.held
}

// pass appends b to what is wanted.
func pass(out, b []byte) []byte {
	if out == nil {
		return nil
	}
	return append(out, b...)
}

// begin begins a sequence; one that is being read is dropped.
func (v *vt) begin(s vtState, first ...byte) {
	v.state, v.long, v.held = s, false, append(v.held[:0], first...)
}

// add holds a byte of a sequence, as long as it is short enough.
func (v *vt) add(c byte) {
	if len(v.held) < heldMax {
		v.held = append(v.held, c)
	} else {
		v.long = true
	}
}

// end ends a sequence, and passes it on if it is wanted.
func (v *vt) end(out []byte, wanted bool) []byte {
	if wanted && !v.long {
		out = pass(out, v.held)
	}
	v.begin(vtText)
	return out
}

// control reads one of U+0080 to U+009F, which means the same in every state.
func (v *vt) control(c byte, out []byte) []byte {
	switch c {
	case 0x9b:
		v.begin(vtCSI, c1, c)
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f:
		v.begin(vtString, c1, c)
	case 0x9c:
		if v.state != vtString && v.state != vtStringEnd {
			return v.end(out, false)
		}
		v.add(c1)
		v.add(c)
		return v.end(out, v.isHarmless(2))
	case 0x9a: // asks for attributes
		return v.end(out, false)
	default:
		v.begin(vtText)
		return pass(out, []byte{c1, c})
	}
	return out
}

// step reads a byte that is no part of such a character.
func (v *vt) step(c byte, out []byte) []byte {
	switch {
	case c == esc && v.state == vtString:
		v.add(c)
		v.state = vtStringEnd
		return out
	case c == esc:
		v.begin(vtEscape, esc)
		return out
	case v.state != vtText && (c == can || c == sub): // they end a sequence
		return v.end(out, false)
	}
	switch v.state {
	case vtEscape:
		return v.escape(c, out)
	case vtCSI:
		return v.csi(c, out)
	case vtString:
		v.add(c)
		if c == bel && v.isOSC() {
			return v.end(out, v.isHarmless(1))
		}
		return out
	case vtStringEnd:
		if c == '\\' {
			v.add(c)
			return v.end(out, v.isHarmless(2))
		}
		v.begin(vtEscape, esc) // it was another sequence's
		return v.escape(c, out)
	}
	if c == enq {
		return out
	}
	return pass(out, []byte{c})
}

func (v *vt) escape(c byte, out []byte) []byte {
	if c < 0x20 { // done at once
		return v.within(c, out)
	}
	v.add(c)
	switch {
	case len(v.held) == 2 && c == '[':
		v.state = vtCSI
	case len(v.held) == 2 && bytes.IndexByte([]byte("P]X^_"), c) >= 0:
		v.state = vtString
	case c <= 0x2f: // an intermediate byte: more follows
	default:
		if c == 'c' && len(v.held) == 2 { // a full reset
			v.modes = nil
		}
		return v.end(out, c != 'Z' || len(v.held) != 2) // ESC Z asks for attributes
	}
	return out
}

func (v *vt) csi(c byte, out []byte) []byte {
	if c < 0x20 {
		return v.within(c, out)
	}
	v.add(c)
	if c < 0x40 || c > 0x7e {
		return out
	}
	params := v.held[2 : len(v.held)-1]
	if (c == 'h' || c == 'l') && !v.long && len(params) > 0 && params[0] == '?' {
		v.modes = v.modes.note(params[1:], c == 'h')
	}
	return v.end(out, !asks(params, c))
}

// within reads a control character within a sequence, which is done before it.
func (v *vt) within(c byte, out []byte) []byte {
	if c == enq {
		return out
	}
	return pass(out, []byte{c})
}

func (v *vt) isOSC() bool { return len(v.held) > 1 && (v.held[1] == ']' || v.held[1] == 0x9d) }

// harmless are the numbers of the operating system commands that are passed on:
// titles, the directory, links, colours, marks of prompts. No other is, such as the
// clipboard's and those that have a terminal report something.
var harmless = []string{"0", "1", "2", "4", "7", "8", "10", "11", "12", "17", "19", "104", "110", "111", "112", "117", "119", "133"}

// isHarmless reports whether a string is a command that asks for nothing, whose
// terminator has so many bytes.
func (v *vt) isHarmless(terminator int) bool {
	if !v.isOSC() || v.long {
		return false
	}
	number, text, _ := bytes.Cut(v.held[2:len(v.held)-terminator], []byte{';'})
	return slices.Contains(harmless, string(number)) && (string(number) == "8" || bytes.IndexByte(text, '?') < 0)
}

// asks reports whether a control sequence asks for an answer: params are its
// parameters and intermediate bytes, final its last byte.
func asks(params []byte, final byte) bool {
	has := func(c byte) bool { return bytes.IndexByte(params, c) >= 0 }
	switch final {
	case 'c', 'n', 't': // attributes, status, what is of the window
		return true
	case 'x':
		return !has('*') && !has('$') // with those they fill and choose rectangles
	case 'p':
		return has('$') // whether a mode is set
	case 'q':
		return has('>') // the version
	case 'u', 'S':
		return has('?') // keyboard and graphics
	case 'w':
		return has('$') || has('\'')
	case 'y':
		return has('*')
	case 'z', '|', '{':
		return has('\'')
	case 'R':
		return has('#')
	}
	return false
}

// note keeps whether modes are set that a sequence lists.
func (m modes) note(list []byte, set bool) modes {
	for text := range bytes.SplitSeq(list, []byte{';'}) {
		n, err := strconv.Atoi(string(text))
		if err != nil || n < 0 || n > modeMax {
			continue
		}
		if _, known := m[n]; !known && len(m) == modesMax {
			continue
		}
		if m == nil {
			m = modes{}
		}
		m[n] = set
	}
	return m
}

// restore appends what sets the modes again.
func (m modes) restore(out []byte) []byte {
	for _, n := range slices.Sorted(maps.Keys(m)) {
		final := byte('l')
		if m[n] {
			final = 'h'
		}
		out = append(strconv.AppendInt(append(out, "\x1b[?"...), int64(n), 10), final)
	}
	return out
}
