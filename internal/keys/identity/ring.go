package identity

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cay-run/cay"
)

const (
	keyBits = 2048
	// every is how old the newest key becomes before another is made.
	every = 30 * 24 * time.Hour
	// announced is how long a key is published before it signs: others keep
	// what they read of the keys for a while.
	announced = 24 * time.Hour
	// lingers is how long a key is published after its successor began to sign.
	// No token of its is good for that long.
	lingers = time.Hour
	// again is how long a new key that could not be made is not tried again.
	again = time.Minute
)

// key is one signing key: a file <dir>/<when it was made>.pem.
type key struct {
	made    time.Time
	private *rsa.PrivateKey
	id      string
	path    string
}

// signs is when the key begins to sign, unless it is the first.
func (k key) signs() time.Time { return k.made.Add(announced) }

// ring is the keys of an installation, oldest first. It makes none before one
// is asked for.
type ring struct {
	dir   string
	keys  []key
	tried time.Time // when a key could not be made
	kept  bool      // the keys are those of several servers, and stay
	log   *slog.Logger
}

func openRing(dir string, log *slog.Logger) (ring, error) {
	r := ring{dir: dir, log: log}
	paths, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil {
		return r, cay.Wrap(cay.Internal, err, "the keys of identity tokens in %s cannot be listed", dir)
	}
	for _, path := range paths {
		k, err := readKey(path)
		if err != nil {
			return r, cay.Wrap(cay.Internal, err, "the key of identity tokens %s is damaged", path).
				WithHint("restore it from a backup, or remove it: services that trust this server's tokens read the new keys")
		}
		r.keys = append(r.keys, k)
	}
	slices.SortFunc(r.keys, func(a, b key) int { return a.made.Compare(b.made) })
	return r, nil
}

// signer returns the key that signs at a time.
func (r *ring) signer(now time.Time) (key, error) {
	if err := r.turn(now); err != nil {
		return key{}, err
	}
	for _, k := range slices.Backward(r.keys) {
		if !now.Before(k.signs()) {
			return k, nil
		}
	}
	return r.keys[0], nil
}

// published returns the keys that tokens are checked with.
func (r *ring) published(now time.Time) ([]key, error) {
	err := r.turn(now)
	return r.keys, err
}

// turn makes a key when it is time, and forgets those that nothing needs.
// A key that cannot be made while there is another is tried again later.
func (r *ring) turn(now time.Time) error {
	due := len(r.keys) == 0 || !r.kept && !now.Before(r.keys[len(r.keys)-1].made.Add(every))
	if due && !now.Before(r.tried.Add(again)) {
		k, err := makeKey(r.dir, now)
		switch {
		case err == nil:
			r.keys = append(r.keys, k)
		case len(r.keys) == 0:
			return cay.Wrap(cay.Unavailable, err, "a key for identity tokens cannot be made").
				WithHint("check that the data directory is writable and has room")
		default:
			r.tried = now
			r.log.Error("cannot make the next key of identity tokens; the old one signs on", "err", err)
		}
	}
	for len(r.keys) > 1 && !now.Before(r.keys[1].signs().Add(lingers)) {
		if err := os.Remove(r.keys[0].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("cannot remove an old key of identity tokens", "path", r.keys[0].path, "err", err)
		}
		r.keys = r.keys[1:]
	}
	return nil
}

const blockType = "PRIVATE KEY"

// makeKey writes a whole key or nothing.
func makeKey(dir string, now time.Time) (key, error) {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return key{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return key{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return key{}, err
	}
	path := filepath.Join(dir, strconv.FormatInt(now.UnixMilli(), 10)+".pem")
	if err := writeFile(path, pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der})); err != nil {
		return key{}, err
	}
	return newKey(path, private)
}

func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func readKey(path string) (key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return key{}, err
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != blockType {
		return key{}, errors.New("it holds no private key in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return key{}, err
	}
	private, ok := parsed.(*rsa.PrivateKey)
	if !ok {
		return key{}, errors.New("it is no RSA key")
	}
	return newKey(path, private)
}

// newKey is the key of a file, whose name says when it was made.
func newKey(path string, private *rsa.PrivateKey) (key, error) {
	ms, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".pem"), 10, 64)
	if err != nil {
		return key{}, err
	}
	public := jose.JSONWebKey{Key: private.Public()}
	sum, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return key{}, err
	}
	return key{made: time.UnixMilli(ms), private: private, id: base64.RawURLEncoding.EncodeToString(sum), path: path}, nil
}
