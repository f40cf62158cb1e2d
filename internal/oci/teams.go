package oci

import (
	"path/filepath"
	"sync"

	"github.com/cay-run/cay"
)

// Teams keeps a Store for each team, below one directory. What a team pulled
// with its credentials, or imported, no other team can name.
type Teams struct {
	dir  string
	opts Options

	mu     sync.Mutex
	stores map[cay.TeamID]*Store
}

// NewTeams returns the stores below a directory, which are made when they are
// asked for.
func NewTeams(dir string, opts Options) *Teams {
	return &Teams{dir: dir, opts: opts, stores: map[cay.TeamID]*Store{}}
}

// Of returns a team's store.
func (t *Teams) Of(team cay.TeamID) (*Store, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.stores[team]; s != nil {
		return s, nil
	}
	name := string(team)
	if name == "" || name != filepath.Base(name) || name[0] == '.' {
		return nil, cay.Errorf(cay.Internal, "%q is not the id of a team", name)
	}
	s, err := Open(filepath.Join(t.dir, name), t.opts)
	if err != nil {
		return nil, err
	}
	t.stores[team] = s
	return s, nil
}
