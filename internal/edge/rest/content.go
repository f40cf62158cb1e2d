package rest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/shares"
	"github.com/cay-run/cay/internal/trail"
)

// The files of volumes, as E2B's SDKs ask for them: each request carries a
// token of its volume, and an error has a word for its code, not a number.
const contentRoute = "/volumecontent/{volumeID}"

const (
	// maxContent bounds how many requests are about files of volumes at once, and
	// maxContentTeam those of one team.
	maxContent     = 256
	maxContentTeam = 64

	// maxLists and maxListsTeam bound how many of them list directories, which is
	// done in memory.
	maxLists     = 32
	maxListsTeam = 8

	// maxTrees and maxTreesTeam bound how many archives fill volumes and come of
	// them at once.
	maxTrees     = 64
	maxTreesTeam = 16

	maxMeta = 64 << 10 // bytes of a body that is no content

	// maxIgnored is how much is read of content that is refused: a client that is
	// cut off while it sends does not read why.
	maxIgnored = 256 << 20
	maxStrange = 1 << 20 // of a client without a token that is good
)

// Content are the files of volumes.
type Content interface {
	// Owner returns the team whose volume a token opens.
	Owner(id cay.VolumeID, token string) (cay.TeamID, bool)
	// Files opens a team's volume, until it is closed.
	Files(ctx context.Context, team cay.TeamID, id cay.VolumeID) (VolumeFiles, error)
}

// VolumeFiles are the files of a volume. No path leads out of it.
type VolumeFiles interface {
	Stat(name string) (cay.VolumeEntry, error)
	List(ctx context.Context, name string, depth int) ([]cay.VolumeEntry, error)
	Mkdir(name string, force bool, meta cay.VolumeMeta) (cay.VolumeEntry, error)
	SetMeta(name string, meta cay.VolumeMeta) (cay.VolumeEntry, error)
	Read(name string) (*os.File, cay.VolumeEntry, error)
	// Write gives a name content of a size, -1 for one that is not known. It
	// returns an error of the content as it is.
	Write(ctx context.Context, name string, content io.Reader, size int64, force bool, meta cay.VolumeMeta) (cay.VolumeEntry, error)
	Remove(ctx context.Context, name string) error
	Close() error
}

// isContent reports whether a request is about files of a volume.
func isContent(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/volumecontent/") }

// contentCall answers a request for a volume that is open.
type contentCall func(files VolumeFiles, w http.ResponseWriter, r *http.Request) error

// mountContent adds the routes.
func (s *server) mountContent(root chi.Router, content Content) {
	all, lists := turns{shares.New[cay.TeamID](maxContent, maxContentTeam)}, turns{shares.New[cay.TeamID](maxLists, maxListsTeam)}
	route := func(method, path string, call contentCall) {
		turns := []turns{all}
		if method == http.MethodGet && path == "/dir" {
			turns = append(turns, lists)
		}
		open := func(w http.ResponseWriter, r *http.Request) {
			allowOrigins(w)
			err := s.contentOf(content, turns, call, w, r)
			if err == nil {
				return
			}
			if method == http.MethodPut && r.Header.Get("Expect") == "" { // else it waits to be asked
				most := int64(maxIgnored)
				if cay.KindOf(err) == cay.Unauthenticated {
					most = maxStrange
				}
				_, _ = io.CopyN(io.Discard, r.Body, most) // the client may be gone
			}
			s.failContent(w, r, err)
		}
		root.MethodFunc(method, contentRoute+path, open)
	}
	route(http.MethodGet, "/path", statContent)
	route(http.MethodPatch, "/path", updateContent)
	route(http.MethodDelete, "/path", removeContent)
	route(http.MethodGet, "/dir", listContent)
	route(http.MethodPost, "/dir", makeContent)
	route(http.MethodGet, "/file", readContent)
	route(http.MethodHead, "/file", readContent)
	route(http.MethodPut, "/file", writeContent)
	root.MethodFunc(http.MethodOptions, contentRoute+"/{what}", func(w http.ResponseWriter, r *http.Request) {
		allowOrigins(w)
		w.WriteHeader(http.StatusNoContent)
	})
}

// allowOrigins lets pages of any origin call: the token, which no browser sends
// by itself, is what opens a volume.
func allowOrigins(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Range, *")
	h.Set("Access-Control-Expose-Headers", "*")
	h.Set("Access-Control-Max-Age", "7200")
}

// contentOf checks the token, takes a turn, and calls.
func (s *server) contentOf(content Content, turns []turns, call contentCall, w http.ResponseWriter, r *http.Request) error {
	id := cay.VolumeID(strings.ToLower(chi.URLParam(r, "volumeID")))
	token := ""
	if scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "bearer") {
		token = strings.TrimSpace(text)
	}
	team, ok := content.Owner(id, token)
	if !ok {
		return cay.Errorf(cay.Unauthenticated, "the token of the volume is missing or wrong").
			WithHint("connect to the volume (Volume.connect), which gives its token")
	}
	if followed := trail.Of(r.Context()); followed != nil {
		followed.Team = team
	}
	if err := s.paceContent(w, r, team); err != nil {
		return err
	}
	for _, one := range turns {
		if err := one.take(team); err != nil {
			return err
		}
		defer one.give(team)
	}
	files, err := content.Files(r.Context(), team, id)
	if err != nil {
		return err
	}
	defer files.Close()
	return call(files, w, r)
}

// paceContent counts a request to the team's rate.
func (s *server) paceContent(w http.ResponseWriter, r *http.Request, team cay.TeamID) (err error) {
	if s.rates == nil {
		return nil
	}
	state := s.rates.Take(team, ClassOf(r.Method, chi.RouteContext(r.Context()).RoutePattern()))
	state.Tell(w.Header())
	if !state.Allowed {
		return state.Refusal()
	}
	return nil
}

// turns bounds how many requests are under way.
type turns struct{ *shares.Bound[cay.TeamID] }

// take takes a turn, which is given back.
func (t turns) take(team cay.TeamID) error {
	if !t.Take(team, 1) {
		return cay.Errorf(cay.Exhausted, "too many requests are about files of volumes just now").WithCode(cay.CodeRateLimit)
	}
	return nil
}

func (t turns) give(team cay.TeamID) { t.Give(team, 1) }

// contentQuery is what a request says of an entry.
type contentQuery struct {
	path  string
	meta  cay.VolumeMeta
	force bool
	depth int
}

// queryOf reads a query.
func queryOf(r *http.Request) (q contentQuery, err error) {
	all := r.URL.Query()
	q.path, q.depth = all.Get("path"), 1
	if q.path == "" {
		return q, cay.Errorf(cay.Invalid, "path: is required")
	}
	if q.meta.UID, err = numberOf("uid", all.Get("uid"), maxUser); err != nil {
		return q, err
	}
	if q.meta.GID, err = numberOf("gid", all.Get("gid"), maxUser); err != nil {
		return q, err
	}
	if q.meta.Mode, err = numberOf("mode", all.Get("mode"), maxMode); err != nil {
		return q, err
	}
	if text := all.Get("force"); text != "" {
		if q.force, err = strconv.ParseBool(text); err != nil {
			return q, cay.Errorf(cay.Invalid, "force: must be true or false")
		}
	}
	if text := all.Get("depth"); text != "" {
		if q.depth, err = strconv.Atoi(text); err != nil {
			return q, cay.Errorf(cay.Invalid, "depth: must be a number").WithCode(cay.CodeDepth)
		}
	}
	return q, nil
}

const (
	maxUser = 1<<31 - 1
	maxMode = 0o7777
)

func numberOf(name, text string, most uint64) (*uint32, error) {
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return nil, cay.Errorf(cay.Invalid, "%s: must be 0 to %d", name, most)
	}
	v := uint32(n)
	return &v, nil
}

func statContent(files VolumeFiles, w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r)
	if err != nil {
		return err
	}
	e, err := files.Stat(q.path)
	return tellEntry(w, http.StatusOK, e, err)
}

func updateContent(files VolumeFiles, w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r)
	if err != nil {
		return err
	}
	meta, err := metaOf(r.Body)
	if err != nil {
		return err
	}
	e, err := files.SetMeta(q.path, meta)
	return tellEntry(w, http.StatusOK, e, err)
}

// metaOf reads the body of an update.
func metaOf(body io.Reader) (meta cay.VolumeMeta, err error) {
	text, err := io.ReadAll(io.LimitReader(body, maxMeta+1))
	if err != nil || len(text) > maxMeta {
		return meta, cay.Wrap(cay.Invalid, err, "the body cannot be read, or has more than %d bytes", maxMeta)
	}
	var asked struct{ UID, GID, Mode *json.Number }
	if err := json.Unmarshal(text, &asked); err != nil {
		return meta, cay.Wrap(cay.Invalid, err, "the body is not JSON with the numbers uid, gid and mode")
	}
	for _, field := range []struct {
		name string
		text *json.Number
		most uint64
		to   **uint32
	}{{"uid", asked.UID, maxUser, &meta.UID}, {"gid", asked.GID, maxUser, &meta.GID}, {"mode", asked.Mode, maxMode, &meta.Mode}} {
		if field.text == nil {
			continue
		}
		if *field.to, err = numberOf(field.name, field.text.String(), field.most); err != nil {
			return meta, err
		}
	}
	return meta, nil
}

func removeContent(files VolumeFiles, w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r)
	if err == nil {
		err = files.Remove(r.Context(), q.path)
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

func listContent(files VolumeFiles, w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r)
	if err != nil {
		return err
	}
	all, err := files.List(r.Context(), q.path, q.depth)
	if err != nil {
		return err
	}
	out := make([]wireEntry, len(all))
	for i, e := range all {
		out[i] = wireEntryOf(e)
	}
	return tellContent(w, http.StatusOK, out)
}

func makeContent(files VolumeFiles, w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r)
	if err != nil {
		return err
	}
	e, err := files.Mkdir(q.path, q.force, q.meta)
	return tellEntry(w, http.StatusCreated, e, err)
}

// readContent sends a file, or the ranges of it that are asked for. A file that
// becomes shorter meanwhile breaks the connection off: no client takes a part
// for all.
func readContent(files VolumeFiles, w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r)
	if err != nil {
		return err
	}
	f, e, err := files.Read(q.path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream") // a browser shows nothing of it at this origin
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", "attachment")
	h.Set("Cache-Control", "private, no-cache")
	http.ServeContent(w, r, "", e.Modified, f)
	return nil
}

func writeContent(files VolumeFiles, w http.ResponseWriter, r *http.Request) error {
	q, err := queryOf(r)
	if err != nil {
		return err
	}
	e, err := files.Write(r.Context(), q.path, r.Body, r.ContentLength, q.force, q.meta)
	var ours *cay.Error
	if err != nil && !errors.As(err, &ours) {
		err = cay.Wrap(cay.Invalid, err, "the content ended before it was whole; nothing was written")
	}
	return tellEntry(w, http.StatusCreated, e, err)
}

// wireEntry is E2B's VolumeEntryStat.
type wireEntry struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	ATime  string `json:"atime"`
	MTime  string `json:"mtime"`
	CTime  string `json:"ctime"`
	Target string `json:"target,omitempty"`
}

// contentTime is RFC 3339 with microseconds, as the SDKs' languages know them.
const contentTime = "2006-01-02T15:04:05.000000Z07:00"

func wireEntryOf(e cay.VolumeEntry) wireEntry {
	return wireEntry{
		Name: e.Name, Type: string(e.Type), Path: e.Path, Size: e.Size, Mode: e.Mode, UID: e.UID, GID: e.GID,
		ATime: e.Accessed.Format(contentTime), MTime: e.Modified.Format(contentTime), CTime: e.Changed.Format(contentTime), Target: e.Target,
	}
}

func tellEntry(w http.ResponseWriter, status int, e cay.VolumeEntry, err error) error {
	if err != nil {
		return err
	}
	return tellContent(w, status, wireEntryOf(e))
}

func tellContent(w http.ResponseWriter, status int, what any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(what) // the client may be gone
	return nil
}

// contentError is the body of an error about files.
type contentError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// failContent answers with an error about files.
func (s *server) failContent(w http.ResponseWriter, r *http.Request, err error) {
	s.failAs(w, r, err, func(e e2b.Error) any {
		code := value(e.ErrorCode, string(cay.KindOf(err)))
		if code == string(cay.Invalid) {
			code = "invalid_request" // E2B's word
		}
		return contentError{Code: code, Message: e.Message}
	})
}
