package server_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// answered asks as the operator, and reads the answer.
func answered[T any](t *testing.T, w *servertest.World, method, path string) (out T) {
	t.Helper()
	code, text := asked(t, w, "", "told", method, path, "")
	if err := json.Unmarshal([]byte(text), &out); err != nil || code != http.StatusOK {
		t.Fatalf("%s %s: %d %s %v", method, path, code, text, err)
	}
	return out
}

type snapshotOnDisk struct {
	SnapshotID, Kind, TeamID, SandboxID, Damage string
	Bytes                                       int64
}

// The operator sees the snapshots of the machine by the API, and which are damaged.
func TestSnapshotsAreVerified(t *testing.T) {
	w := servertest.Start(t)
	box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Client().Pause(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	const path = "/cay/v1/admin/snapshots"
	all := answered[[]snapshotOnDisk](t, w, "GET", path)
	at := slices.IndexFunc(all, func(s snapshotOnDisk) bool { return s.SandboxID == box.ID })
	if len(all) != 4 || at < 0 || all[at].Bytes == 0 || all[at].Kind != "memory" || all[at].TeamID == "" {
		t.Fatalf("%+v", all)
	}
	for _, s := range all {
		if v := answered[snapshotOnDisk](t, w, "GET", path+"/"+s.SnapshotID+"/verification"); v.Damage != "" || v.SnapshotID != s.SnapshotID {
			t.Errorf("%+v", v)
		}
	}
	flipAByte(t, filepath.Join(w.Config.Data, "snapshots", all[at].SnapshotID, "memory.json"))
	if v := answered[snapshotOnDisk](t, w, "GET", path+"/"+all[at].SnapshotID+"/verification"); !strings.Contains(v.Damage, "damaged") {
		t.Errorf("one flipped byte: %+v", v)
	}
	for _, id := range []string{"snone", "..%2F..%2Fetc", "%00"} {
		if code, text := asked(t, w, "", "none", "GET", path+"/"+id+"/verification", ""); code != http.StatusNotFound {
			t.Errorf("%q: %d %s", id, code, text)
		}
	}
}

// flipAByte changes the last byte of a file.
func flipAByte(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	text[len(text)-1] ^= 1
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// The operator has garbage listed and removed, the cache of packages emptied and the
// storage told by the API; each change is a row of the audit log.
func TestUpkeep(t *testing.T) {
	w := servertest.New(t)
	w.Config.PackageCache = "1GiB"
	w.Start()
	w.Stop()
	w.Start() // which builds nothing, and so collects nothing for an hour
	old := filepath.Join(w.Config.Data, "contexts", string(cay.NewTeamID()), strings.Repeat("a", 64))
	long := time.Now().Add(-100 * 24 * time.Hour)
	if err := os.MkdirAll(filepath.Dir(old), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	const garbage = "/cay/v1/admin/garbage"
	for _, method := range []string{"GET", "DELETE"} {
		got := answered[[]cay.Garbage](t, w, method, garbage)
		if len(got) != 1 || got[0].Kind != "archive" || got[0].Bytes < 1<<16 {
			t.Errorf("%s: %+v", method, got)
		}
	}
	if got := answered[[]cay.Garbage](t, w, "GET", garbage); len(got) != 0 {
		t.Errorf("it is still there: %+v", got)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the file: %v", err)
	}
	const packages = "/cay/v1/admin/package-cache"
	if got := answered[struct{ Files, LimitBytes int64 }](t, w, "GET", packages); got.Files != 0 || got.LimitBytes != 1<<30 {
		t.Errorf("%+v", got)
	}
	if got := answered[struct{ Files, Bytes *int64 }](t, w, "DELETE", packages); got.Files == nil || *got.Files != 0 || *got.Bytes != 0 {
		t.Errorf("%+v", got)
	}
	if got := answered[struct {
		DataDirectory string
		Own           bool
	}](t, w, "GET", "/cay/v1/admin/storage"); got.DataDirectory != w.Config.Data || got.Own {
		t.Errorf("%+v", got)
	}
	if status, text := adminAsks(t, w, "GET", "/cay/v1/admin/storage?nodeID=none", ""); status != http.StatusNotFound {
		t.Errorf("of another node: %d %s", status, text)
	}
	w.Stop()
	var actions []string
	for _, r := range auditRows(t, w) {
		if r.Request == "told" {
			actions = append(actions, r.Action+" "+string(r.Outcome))
		}
	}
	if want := []string{"garbage.collected ok", "packages.cleared ok"}; !slices.Equal(actions, want) {
		t.Errorf("rows %v", actions)
	}
}

// A server without a cache of packages says so.
func TestNoPackageCache(t *testing.T) {
	w := servertest.Start(t)
	for _, method := range []string{"GET", "DELETE"} {
		if code, text := asked(t, w, "", "1", method, "/cay/v1/admin/package-cache", ""); code != http.StatusNotFound || !strings.Contains(text, "CAY_PACKAGE_CACHE") {
			t.Errorf("%s: %d %s", method, code, text)
		}
	}
}
