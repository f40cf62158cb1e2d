package replica

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// keys makes the keys of each place from the sealing key. A key of one place opens
// nothing of another.
type keys []byte

func (k keys) of(use, place string) []byte {
	key, err := hkdf.Key(sha256.New, k, nil, "cay bucket "+use+" "+place, 32)
	if err != nil { // more bytes than a hash can give
		panic(err)
	}
	return key
}

// name is that of a piece: of what is in it, for those who have the keys.
func (k keys) name(at string, plain []byte) string {
	h := hmac.New(sha256.New, k.of("name", at))
	h.Write(plain)
	return hex.EncodeToString(h.Sum(nil)[:24])
}

// content names what is in a piece of an image, wherever that lies: equal pieces of two images
// have one. It is in sealed records only; each place has a name of its own made of it.
func (k keys) content(plain []byte) string { return k.name(images, plain) }

func (k keys) cipher(name string) cipher.AEAD {
	block, err := aes.NewCipher(k.of("seal", name))
	if err != nil {
		panic(err) // another length of key
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// seal compresses and encrypts what is to be an object.
func (k keys) seal(name string, plain []byte) []byte { return k.sealAs(name, plain, small) }

// sealAs is seal with a codec.
func (k keys) sealAs(name string, plain []byte, as codec) []byte {
	room := partOf(1 + packRoom(plain))
	defer parts.Put(room)
	return k.cipher(name).Seal(nil, nil, as.pack(*room, plain), []byte(name))
}

// open returns what seal was given for the same name, or says that it is damaged.
func (k keys) open(name string, sealed []byte) ([]byte, error) {
	packed, err := k.cipher(name).Open(nil, nil, sealed, []byte(name))
	if err != nil {
		return nil, damaged(name)
	}
	plain, err := unpacked(packed)
	if err != nil {
		return nil, damaged(name)
	}
	return plain, nil
}
