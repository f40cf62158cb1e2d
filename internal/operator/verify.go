package operator

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/store"
)

// Verified is the result for one snapshot.
type Verified struct {
	ID    string `json:"snapshotID"`
	Error string `json:"error,omitempty"` // empty when it is whole
}

// verifyLine is a line of the server's answer; the last one is Done or has a
// failure.
type verifyLine struct {
	Verified *Verified `json:"verified,omitempty"`
	Done     bool      `json:"done,omitempty"`
	failure
}

func (d *Desk) verifyRoutes(routes *http.ServeMux) {
	routes.HandleFunc("POST /verify", func(w http.ResponseWriter, r *http.Request) {
		tell := streamTo(w)
		var err error
		if len(r.URL.Query()["id"]) == 0 {
			err = d.cfg.Store.Check(r.Context())
		}
		if err != nil {
			tell(verifyLine{failure: failed(err)})
			return
		}
		err = verify(r.Context(), d.cfg.Snapshots, r.URL.Query()["id"], func(v Verified) { tell(verifyLine{Verified: &v}) })
		tell(verifyLine{Done: err == nil, failure: failed(err)})
	})
}

// Verify compares every file of snapshots with its checksum and tells the
// result of each: of all, when none is named, and then it looks through the
// records first. A server that runs does it; without a server this process takes
// its place meanwhile.
func Verify(ctx context.Context, cfg config.Config, ids []string, tell func(Verified)) error {
	c := Ask(cfg)
	if c.Serving(ctx) {
		return c.verify(ctx, ids, tell)
	}
	if _, err := os.Stat(cfg.Data); err != nil {
		return cay.Wrap(cay.NotFound, err, "there is no data directory %s", cfg.Data).
			WithHint("set CAY_DATA_DIR as it is set for the server")
	}
	lock, err := host.Take(ctx, c.host)
	if err != nil {
		return err
	}
	defer lock.Close()
	if path := c.host.Database(); len(ids) == 0 && cfg.DatabaseURL == "" && exists(path) {
		if err := store.CheckFile(ctx, path); err != nil {
			return err
		}
	}
	dir, err := snapshot.Open(cfg.Data)
	if err != nil {
		return err
	}
	return verify(ctx, dir, ids, tell)
}

func (c Client) verify(ctx context.Context, ids []string, tell func(Verified)) error {
	var last verifyLine
	err := c.call(ctx, http.MethodPost, "/verify?"+url.Values{"id": ids}.Encode(), func(lines *json.Decoder) error {
		for !last.Done && last.Error == "" {
			last = verifyLine{}
			if err := lines.Decode(&last); err != nil {
				return err
			}
			if last.Verified != nil {
				tell(*last.Verified)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return last.err()
}

func verify(ctx context.Context, dir *snapshot.Dir, ids []string, tell func(Verified)) error {
	all := len(ids) == 0
	if all {
		var err error
		if ids, err = dir.IDs(); err != nil {
			return err
		}
	}
	for _, id := range ids {
		err := dir.Verify(ctx, cay.SnapshotID(id))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case all && cay.KindOf(err) == cay.NotFound: // removed meanwhile
		case err != nil:
			tell(Verified{ID: id, Error: err.Error()})
		default:
			tell(Verified{ID: id})
		}
	}
	return nil
}
