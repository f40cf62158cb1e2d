package layer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// keyRecord is what a key stands for.
type keyRecord struct {
	Value json.RawMessage `json:"value"`
}

// Find reads what a key stands for into value, and marks the key as used. It
// reports whether there was something.
func (s *Store) Find(key string, value any) bool {
	name := s.key(key)
	text, err := os.ReadFile(name)
	if err != nil || !validDigest(key) {
		return false
	}
	var r keyRecord
	if json.Unmarshal(text, &r) != nil || json.Unmarshal(r.Value, value) != nil {
		return false // torn by a crash of the machine
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now) // it is removed sooner then, nothing worse
	return true
}

// Remember records what a key stands for. It replaces what was there.
func (s *Store) Remember(key string, value any) error {
	if !validDigest(key) {
		return cay.Errorf(cay.Internal, "%.80q is no key", key)
	}
	inner, err := json.Marshal(value)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode a key")
	}
	text, err := json.Marshal(keyRecord{inner})
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode a key")
	}
	f, err := os.CreateTemp(s.tmp(), "key-")
	if err != nil {
		return disk.Error(err, "write a key")
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.key(key))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
		return disk.Error(err, "write a key")
	}
	return nil
}

func (s *Store) key(key string) string { return filepath.Join(s.keys(), key+".json") }

// Values calls f with what every key stands for that was used since a time.
func (s *Store) Values(since time.Time, f func(json.RawMessage)) error {
	return s.eachKey(func(name string, used time.Time) error {
		if used.Before(since) {
			return nil
		}
		if value, ok := readKey(name); ok {
			f(value)
		}
		return nil
	})
}

// Collect forgets keys that were not used since a time, then layers that no
// key names and nothing stands on, then packs that are in no layer. With dry
// it only tells what it would remove. layerOf reads the layer, if any, that a
// key's value names. No build may run.
func (s *Store) Collect(before time.Time, layerOf func(json.RawMessage) string, dry bool) ([]cay.Garbage, error) {
	used := map[string]bool{}
	err := s.eachKey(func(name string, at time.Time) error {
		if !at.Before(before) {
			if value, ok := readKey(name); ok {
				used[layerOf(value)] = true
			}
		} else if !dry {
			return os.Remove(name)
		}
		return nil
	})
	if err != nil {
		return nil, disk.Error(err, "look through keys")
	}
	delete(used, "")
	wanted := map[string]bool{}
	for len(used) > 0 { // down the chains
		next := map[string]bool{}
		for digest := range used {
			l, err := s.Load(digest)
			if err != nil {
				continue // damaged: its key finds nothing
			}
			for _, p := range l.packs {
				wanted[p] = true
			}
			wanted[digest] = true
			if l.Below != "" && !wanted[l.Below] {
				next[l.Below] = true
			}
		}
		used = next
	}
	layers, err := sweep(s.dir, wanted, dry)
	packs, perr := sweep(s.packs(), wanted, dry)
	return append(layers, packs...), errors.Join(err, perr)
}

// eachKey calls f with the file of every key and when it was used.
func (s *Store) eachKey(f func(name string, used time.Time) error) error {
	entries, err := os.ReadDir(s.keys())
	if err != nil {
		return disk.Error(err, "list keys")
	}
	for _, e := range entries {
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = f(filepath.Join(s.keys(), e.Name()), st.ModTime())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readKey(name string) (json.RawMessage, bool) {
	var r keyRecord
	text, err := os.ReadFile(name)
	ok := err == nil && json.Unmarshal(text, &r) == nil
	return r.Value, ok
}

// sweep removes what is named by a digest that is not wanted.
func sweep(dir string, wanted map[string]bool, dry bool) ([]cay.Garbage, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, disk.Error(err, "list %s", dir)
	}
	var out []cay.Garbage
	var errs []error
	for _, e := range entries {
		if !validDigest(e.Name()) || wanted[e.Name()] {
			continue
		}
		path := filepath.Join(dir, e.Name())
		out = append(out, cay.Garbage{Kind: "layer", Name: e.Name(), Bytes: disk.Use(path)})
		if !dry {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return out, errors.Join(errs...)
}
