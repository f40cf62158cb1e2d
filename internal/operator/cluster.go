package operator

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/member"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/store"
)

// AuthorityPlace is what the key of a cluster's authority is sealed for.
const AuthorityPlace = "cluster authority"

// InitCluster makes the records of a data directory, which are in PostgreSQL, those
// of a cluster, and its machine the first member. No server may run there.
func InitCluster(ctx context.Context, cfg config.Config) (id cay.NodeID, err error) {
	err = onMachine(ctx, cfg, func() error {
		key, err := seal.Open(cfg.Data)
		if err != nil {
			return err
		}
		machine, err := seal.Token(filepath.Join(cfg.Data, MachineName))
		if err != nil {
			return err
		}
		db, err := OpenRecords(ctx, cfg, key)
		if err != nil {
			return err
		}
		defer func() { _ = db.Close() }()
		if err := mayCluster(ctx, db); err != nil {
			return err
		}
		c := cay.Cluster{ID: string(member.NewNodeID())[1:]}
		cert, authorityKey, err := member.NewAuthority(c.ID)
		if err != nil {
			return err
		}
		authority, err := member.OpenAuthority(cert, authorityKey)
		if err != nil {
			return err
		}
		id = member.NewNodeID()
		files, err := authority.Issue(c.ID, id)
		if err != nil {
			return err
		}
		own, err := member.Parse(files)
		if err != nil {
			return err
		}
		c.Certificate, c.Key = string(cert), key.Seal(authorityKey, AuthorityPlace)
		first := cay.Node{ID: id, Machine: machine, Address: cfg.ClusterAddress, Fingerprint: own.Fingerprint, Version: cay.Version}
		if err := db.MakeCluster(ctx, c, NodeID, first); err != nil {
			return err
		}
		return written(files.Write(cfg.Data), id)
	})
	return id, err
}

// mayCluster refuses records of what one machine alone can have yet.
func mayCluster(ctx context.Context, db *store.DB) error {
	volumes, err := db.Volumes(ctx, "")
	if err == nil && len(volumes) > 0 {
		err = cay.Errorf(cay.Unsupported, "there are %d volumes: a cluster keeps none yet", len(volumes)).
			WithHint("export and remove them first, or leave this machine alone")
	}
	return err
}

// JoinCluster makes the machine of an empty data directory a member, by a token.
func JoinCluster(ctx context.Context, cfg config.Config, text string) (id cay.NodeID, err error) {
	token, err := member.ParseToken(text)
	if err != nil {
		return "", err
	}
	err = onMachine(ctx, cfg, func() error {
		for _, name := range append([]string{recordsName}, kept...) {
			if exists(filepath.Join(cfg.Data, name)) {
				return cay.Errorf(cay.Conflict, "%s has records or keys already: %s", cfg.Data, name).
					WithHint("a machine joins with an empty data directory; set CAY_DATA_DIR to another one")
			}
		}
		machine, err := seal.Token(filepath.Join(cfg.Data, MachineName))
		if err != nil {
			return err
		}
		var files member.Files
		var keys map[string][]byte
		// The key of the records comes with the token.
		db, err := store.OpenPostgres(ctx, postgresOf(cfg), noSealer{})
		if err != nil {
			return err
		}
		err = db.JoinCluster(ctx, token.Digest(), func(c cay.Cluster, bundle string) (n cay.Node, err error) {
			if keys, err = openBundle(token, bundle); err != nil {
				return n, err
			}
			id = member.NewNodeID()
			if files, err = issue(c, keys[seal.File], id); err != nil {
				return n, err
			}
			own, err := member.Parse(files)
			if err != nil {
				return n, err
			}
			return cay.Node{ID: id, Machine: machine, Address: cfg.ClusterAddress, Fingerprint: own.Fingerprint, Version: cay.Version}, nil
		})
		if err = errors.Join(err, db.Close()); err != nil {
			return err
		}
		return written(errors.Join(writeKeys(cfg.Data, keys), files.Write(cfg.Data)), id)
	})
	return id, err
}

// onMachine does something with the data directory of a machine that is to be a
// member.
func onMachine(ctx context.Context, cfg config.Config, do func() error) error {
	switch {
	case cfg.DatabaseURL == "":
		return cay.Errorf(cay.Invalid, "a cluster has its records in PostgreSQL, and CAY_DATABASE_URL is not set").
			WithHint("docs/operate/database.md says how; cay cluster import moves the records of a machine there")
	case cfg.ClusterAddress == "":
		return cay.Errorf(cay.Invalid, "CAY_CLUSTER_ADDRESS is not set").
			WithHint("it is where the other members reach this machine, such as 10.0.0.1:7071")
	}
	lock, err := host.Take(ctx, Host(cfg))
	if err != nil {
		return err
	}
	defer lock.Close()
	own, err := member.Open(cfg.Data)
	if err == nil && own != nil {
		err = cay.Errorf(cay.Conflict, "this machine is node %s of a cluster already", own.Node)
	}
	if err != nil {
		return err
	}
	return do()
}

// OwnNode is the node that this machine is of a cluster; empty where it is none.
func OwnNode(cfg config.Config) (cay.NodeID, error) {
	own, err := member.Open(cfg.Data)
	if err != nil || own == nil {
		return "", err
	}
	return own.Node, nil
}

// written says what to do where a member is recorded and its files are not there.
func written(err error, id cay.NodeID) error {
	if err == nil {
		return nil
	}
	return cay.Wrap(cay.Unavailable, err, "node %s is recorded, but its files could not be written", id).
		WithHint("remove what is in the data directory; cay node remove %s, then join with another token", id)
}

// issue makes the files of a new member with the sealing key of the installation.
func issue(c cay.Cluster, secret []byte, id cay.NodeID) (files member.Files, err error) {
	key, err := seal.NewKey(secret)
	if err != nil {
		return files, err
	}
	authorityKey, err := key.Open(c.Key, AuthorityPlace)
	if err != nil {
		return files, err
	}
	authority, err := member.OpenAuthority([]byte(c.Certificate), authorityKey)
	if err != nil {
		return files, err
	}
	return authority.Issue(c.ID, id)
}

// Bundle seals the keys of a data directory for a new token, and returns the token's
// text and digest and the bundle.
func Bundle(data string) (text, digest, bundle string, err error) {
	keys := map[string][]byte{}
	for _, name := range kept {
		err := filepath.WalkDir(filepath.Join(data, name), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			inside, err := filepath.Rel(data, path)
			if err != nil {
				return err
			}
			keys[inside], err = os.ReadFile(path)
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", "", "", cay.Wrap(cay.Unavailable, err, "cannot read the keys of this machine")
		}
	}
	plain, err := json.Marshal(keys)
	if err != nil {
		return "", "", "", err
	}
	token := member.NewToken()
	bundle, err = token.Seal(plain)
	return token.String(), token.Digest(), bundle, err
}

func openBundle(token member.Token, bundle string) (map[string][]byte, error) {
	plain, err := token.Open(bundle)
	if err != nil {
		return nil, err
	}
	keys := map[string][]byte{}
	if err := json.Unmarshal(plain, &keys); err != nil {
		return nil, cay.Wrap(cay.Internal, err, "what the token opens is damaged")
	}
	for name := range keys {
		if top := firstPart(name); !filepath.IsLocal(name) || !slices.Contains(kept, top) {
			return nil, cay.Errorf(cay.Invalid, "the token brings %.80q, which is no key", name)
		}
	}
	if len(keys[seal.File]) == 0 {
		return nil, cay.Errorf(cay.Internal, "the token brings no sealing key")
	}
	return keys, nil
}

func firstPart(path string) string {
	for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(path) {
		path = dir
	}
	return path
}

// writeKeys writes the keys of an installation into an empty data directory.
func writeKeys(data string, keys map[string][]byte) error {
	var errs []error
	for name, text := range keys {
		path := filepath.Join(data, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// noSealer opens and seals nothing: what is read with it has no secrets.
type noSealer struct{}

func (noSealer) Seal([]byte, string) string { return "" }

func (noSealer) Open(string, string) ([]byte, error) {
	return nil, cay.Errorf(cay.Internal, "there is no key for what is sealed")
}
