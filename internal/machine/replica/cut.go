package replica

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"io"
)

const blockSize = 4 << 10

// bounds are those of the pieces of an image, in blocks.
type bounds struct{ least, mean, most int }

// cuts are from 64 KiB to 4 MiB, 512 KiB in the mean. Smaller ones have more in common with
// other images and are more objects; decision 105 has the figures.
var cuts = bounds{16, 128, mostCut}

const mostCut = 1024 // that a reader takes

// cutter cuts images where what is in them says so: content that two images have at
// other places is in the same pieces, but for those at its ends. Where it cuts is a
// secret of the installation's, or the sizes of pieces would tell the bucket which images of
// public distributions are there.
type cutter struct {
	cipher.Block
	bounds
}

func (k keys) cutter(within bounds) cutter {
	b, err := aes.NewCipher(k.of("cut", images))
	if err != nil {
		panic(err) // another length of key
	}
	return cutter{b, within}
}

// ends reports whether a piece may end behind a block.
func (c cutter) ends(block []byte) bool {
	var b [aes.BlockSize]byte
	binary.LittleEndian.PutUint32(b[:], sum(block))
	c.Encrypt(b[:], b[:])
	return binary.LittleEndian.Uint64(b[:])%uint64(c.mean-c.least) == 0
}

// cut reads to the end, and gives the pieces one by one. Each is the callee's to keep.
func (c cutter) cut(in io.Reader, give func(plain []byte) error) error {
	buffer := make([]byte, c.most*blockSize)
	for end := false; !end; {
		length := 0
		for done := false; !done && !end && length < len(buffer); {
			n, err := io.ReadFull(in, buffer[length:length+blockSize])
			end = err == io.EOF || err == io.ErrUnexpectedEOF
			if err != nil && !end {
				return err
			}
			done = length >= (c.least-1)*blockSize && !end && c.ends(buffer[length:length+blockSize])
			length += n
		}
		if length > 0 {
			if err := give(bytes.Clone(buffer[:length])); err != nil {
				return err
			}
		}
	}
	return nil
}
