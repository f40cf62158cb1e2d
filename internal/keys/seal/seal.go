// Package seal encrypts what records hold of secrets, under a key that lies
// beside the database and not in it: a copy of the database alone tells
// nothing.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
)

const (
	// File is the name of the key in a data directory.
	File   = "seal.key"
	keyLen = 32
	prefix = "sealed:1:" // of every sealed text; the number names the key and the method
)

// Key seals and opens.
type Key struct{ aead cipher.AEAD }

// NewKey returns the key of 32 bytes.
func NewKey(secret []byte) (*Key, error) {
	block, err := aes.NewCipher(secret)
	if err != nil || len(secret) != keyLen {
		return nil, cay.Errorf(cay.Internal, "a sealing key has %d bytes, not %d", len(secret), keyLen)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "no cipher for sealing")
	}
	return &Key{aead}, nil
}

// Open reads the key of a data directory and makes it at the first start.
func Open(dir string) (*Key, error) {
	path := filepath.Join(dir, File)
	secret, err := Secret(path)
	if err != nil {
		return nil, err
	}
	key, err := NewKey(secret)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the sealing key %s is damaged", path).
			WithHint("restore it from a backup; without it secrets and environments of sandboxes are lost")
	}
	return key, nil
}

// Secret reads a file of random bytes, 32 of them, and makes it when there is
// none. A file that is there already is returned as it is, of any length.
func Secret(path string) ([]byte, error) {
	return secretFile(path, func() []byte {
		secret := make([]byte, keyLen)
		rand.Read(secret)
		return secret
	})
}

// Token is Secret with a text of 64 hexadecimal digits, for people to read.
func Token(path string) (string, error) {
	text, err := secretFile(path, func() []byte {
		secret := make([]byte, keyLen)
		rand.Read(secret)
		return append([]byte(hex.EncodeToString(secret)), '\n')
	})
	return strings.TrimSpace(string(text)), err
}

func secretFile(path string, fresh func() []byte) ([]byte, error) {
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeSecret(path, fresh()); err != nil {
			return nil, cay.Wrap(cay.Unavailable, err, "cannot write the secret %s", path).
				WithHint("check that the data directory is there and writable")
		}
		secret, err = os.ReadFile(path) // another process may have been first
	}
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "cannot read the secret %s", path)
	}
	return secret, nil
}

// makeSecret writes a whole secret or nothing: it links a finished file into
// place, which fails quietly when there is one.
func makeSecret(path string, secret []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".secret-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(secret)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Seal encrypts a text for a place, such as a column of a row; elsewhere it
// cannot be opened.
func (k *Key) Seal(plain []byte, place string) string {
	nonce := make([]byte, k.aead.NonceSize())
	rand.Read(nonce)
	return prefix + base64.RawStdEncoding.EncodeToString(k.aead.Seal(nonce, nonce, plain, []byte(place)))
}

// Sealed reports whether a text is one that Seal returned.
func Sealed(text string) bool { return strings.HasPrefix(text, prefix) }

// Open decrypts what was sealed for a place.
func (k *Key) Open(text, place string) ([]byte, error) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimPrefix(text, prefix))
	if n := k.aead.NonceSize(); err == nil && Sealed(text) && len(b) > n {
		if plain, err := k.aead.Open(nil, b[:n], b[n:], []byte(place)); err == nil {
			return plain, nil
		}
	}
	return nil, cay.Errorf(cay.Internal, "a sealed record cannot be opened: it is damaged, or the sealing key is another").
		WithHint("restore %s of the data directory together with the database", File)
}
