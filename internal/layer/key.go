package layer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
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
		return diskError(err, "write a key")
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.key(key))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error counts
		return diskError(err, "write a key")
	}
	return nil
}

func (s *Store) key(key string) string { return filepath.Join(s.keys(), key+".json") }

// Collect forgets keys that were not used since a time, then layers that no
// key names and nothing stands on, then packs that are in no layer. layerOf
// reads the layer, if any, that a key's value names. No build may run.
func (s *Store) Collect(before time.Time, layerOf func(json.RawMessage) string) error {
	used, err := s.collectKeys(before, layerOf)
	if err != nil {
		return err
	}
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
	return errors.Join(sweep(s.dir, wanted), sweep(s.packs(), wanted))
}

func (s *Store) collectKeys(before time.Time, layerOf func(json.RawMessage) string) (map[string]bool, error) {
	used := map[string]bool{}
	entries, err := os.ReadDir(s.keys())
	if err != nil {
		return nil, diskError(err, "list keys")
	}
	for _, e := range entries {
		name := filepath.Join(s.keys(), e.Name())
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, diskError(err, "look at %s", name)
		}
		if st.ModTime().Before(before) {
			if err := os.Remove(name); err != nil {
				return nil, diskError(err, "remove a key")
			}
			continue
		}
		var r keyRecord
		text, err := os.ReadFile(name)
		if err == nil && json.Unmarshal(text, &r) == nil {
			used[layerOf(r.Value)] = true
		}
	}
	delete(used, "")
	return used, nil
}

// sweep removes what is named by a digest that is not wanted.
func sweep(dir string, wanted map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return diskError(err, "list %s", dir)
	}
	var errs []error
	for _, e := range entries {
		if validDigest(strings.TrimSuffix(e.Name(), ".json")) && !wanted[e.Name()] {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
