package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest/archive"
)

// Volume is a directory of files that outlives sandboxes and that several mount
// at once.
type Volume struct {
	ID        string    `json:"volumeID"`
	Name      string    `json:"name"`
	SizeMB    int       `json:"sizeMB"`
	CreatedAt time.Time `json:"createdAt"`
	// The rest is known of one volume, and left out of lists.
	Usage     *VolumeUsage `json:"usage,omitempty"`
	Sandboxes []string     `json:"sandboxes,omitempty"` // that mount it, running or paused
}

// VolumeUsage is how full a volume is.
type VolumeUsage struct {
	UsedBytes   int64 `json:"usedBytes"`
	SizeBytes   int64 `json:"sizeBytes"`
	Files       int64 `json:"files"`
	StoredBytes int64 `json:"storedBytes"` // that it takes of the server's disk
}

// NewVolume is what a volume is made with.
type NewVolume struct {
	Name   string `json:"name"`
	SizeMB int    `json:"sizeMB,omitempty"` // 0 is the server's usual
}

// VolumeSnapshot is a state of a volume that stays as it is.
type VolumeSnapshot struct {
	ID        string    `json:"snapshotID"`
	Name      string    `json:"name"`
	Volume    string    `json:"volumeID"`
	SizeMB    int       `json:"sizeMB"`
	CreatedAt time.Time `json:"createdAt"`
}

// VolumeMount says where a sandbox has a volume.
type VolumeMount struct {
	Name     string `json:"name"` // or id
	Path     string `json:"path"`
	SubPath  string `json:"subPath,omitempty"` // a directory of the volume, in place of all of it
	ReadOnly bool   `json:"readOnly,omitempty"`
}

const volumesPath = "/cay/v1/volumes"

func ofVolume(ref string) string { return volumesPath + "/" + url.PathEscape(ref) }

func ofSnapshot(ref, name string) string {
	return ofVolume(ref) + "/snapshots/" + url.PathEscape(name)
}

// CreateVolume makes an empty volume.
func (c *Client) CreateVolume(ctx context.Context, in NewVolume) (Volume, error) {
	var out Volume
	_, err := c.call(ctx, http.MethodPost, volumesPath, in, &out)
	return out, err
}

// Volumes lists the team's volumes, oldest first.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	var out []Volume
	_, err := c.call(ctx, http.MethodGet, volumesPath, nil, &out)
	return out, err
}

// Volume finds a volume by its id or name.
func (c *Client) Volume(ctx context.Context, ref string) (Volume, error) {
	var out Volume
	_, err := c.call(ctx, http.MethodGet, ofVolume(ref), nil, &out)
	return out, err
}

// ResizeVolume changes how much a volume may hold, which may be mounted.
func (c *Client) ResizeVolume(ctx context.Context, ref string, sizeMB int) (Volume, error) {
	var out Volume
	_, err := c.call(ctx, http.MethodPatch, ofVolume(ref), map[string]int{"sizeMB": sizeMB}, &out)
	return out, err
}

// DeleteVolume removes a volume with its files. Conflict while a sandbox mounts
// it, and while it has snapshots.
func (c *Client) DeleteVolume(ctx context.Context, ref string) error {
	_, err := c.call(ctx, http.MethodDelete, ofVolume(ref), nil, nil)
	return err
}

// CloneVolume makes a volume with the files that another has, or that its
// snapshot has where one is named.
func (c *Client) CloneVolume(ctx context.Context, ref, name, snapshot string) (Volume, error) {
	var out Volume
	_, err := c.call(ctx, http.MethodPost, ofVolume(ref)+"/clone", map[string]string{"name": name, "snapshot": snapshot}, &out)
	return out, err
}

// SnapshotVolume keeps the files that a volume has now under a name; an empty
// one is made from the time.
func (c *Client) SnapshotVolume(ctx context.Context, ref, name string) (VolumeSnapshot, error) {
	var out VolumeSnapshot
	_, err := c.call(ctx, http.MethodPost, ofVolume(ref)+"/snapshots", map[string]string{"name": name}, &out)
	return out, err
}

// VolumeSnapshots lists the snapshots of a volume, oldest first.
func (c *Client) VolumeSnapshots(ctx context.Context, ref string) ([]VolumeSnapshot, error) {
	var out []VolumeSnapshot
	_, err := c.call(ctx, http.MethodGet, ofVolume(ref)+"/snapshots", nil, &out)
	return out, err
}

// RestoreVolume has a volume have the files of its snapshot, in place of all that
// it has. Conflict while a sandbox mounts it.
func (c *Client) RestoreVolume(ctx context.Context, ref, snapshot string) (Volume, error) {
	var out Volume
	_, err := c.call(ctx, http.MethodPost, ofSnapshot(ref, snapshot)+"/restore", nil, &out)
	return out, err
}

// RemoveVolumeSnapshot removes a snapshot of a volume.
func (c *Client) RemoveVolumeSnapshot(ctx context.Context, ref, snapshot string) error {
	_, err := c.call(ctx, http.MethodDelete, ofSnapshot(ref, snapshot), nil, nil)
	return err
}

// FillOptions say how a volume is filled. The zero value is fine.
type FillOptions struct {
	// Owners keeps the numbers of owners that the tar has; else files are the
	// sandboxes' usual user's.
	Owners bool
	// Progress is called with the bytes that have moved so far.
	Progress func(bytes int64)
}

// FillVolume unpacks a tar into a directory of a volume, which is made if it is
// missing. At an error what was unpacked before it stays.
func (c *Client) FillVolume(ctx context.Context, ref, path string, tar io.Reader, o FillOptions) (Copied, error) {
	var out Copied
	query := url.Values{"path": {path}}
	if o.Owners {
		query.Set("owners", "true")
	}
	resp, err := c.tree(ctx, http.MethodPut, ref, query, &counter{Reader: tar, tell: o.Progress})
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return out, cay.Wrap(cay.Unavailable, err, "the connection broke")
	}
	return out, nil
}

// ExportVolume opens a tar of what is at a path of a volume: names are relative
// to a directory, and a file has its own.
func (c *Client) ExportVolume(ctx context.Context, ref, path string) (io.ReadCloser, error) {
	resp, err := c.tree(ctx, http.MethodGet, ref, url.Values{"path": {path}}, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *Client) tree(ctx context.Context, method, ref string, query url.Values, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.cfg.APIURL+ofVolume(ref)+"/tree?"+query.Encode(), body)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the request cannot be made")
	}
	c.present(r.Header)
	if body != nil {
		r.Header.Set("Content-Type", "application/x-tar")
	}
	return c.send(r)
}

// send makes a request whose answer is read by the caller.
func (c *Client) send(r *http.Request) (*http.Response, error) {
	resp, err := c.cfg.HTTP.Do(r)
	if err != nil {
		return nil, c.unreachable(r.Context(), err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, failure(resp)
	}
	return resp, nil
}

// PackDir is a tar stream of what is in a directory of this machine. Links stay
// links; sockets, FIFOs and devices are left out.
func PackDir(dir string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		err := archive.Packer{}.Pack(w, dir, ".")
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			err = local(err, "cannot read")
		}
		w.CloseWithError(err)
	}()
	return r
}

// UnpackDir unpacks a tar into a directory of this machine, which is made if it
// is missing, and writes nothing outside, whatever the tar says.
func UnpackDir(tar io.Reader, dir string) (Copied, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return Copied{}, local(err, "cannot write")
	}
	in := &counter{Reader: tar}
	stats, err := archive.Unpack(context.Background(), in, dir, &archive.Owner{UID: os.Getuid(), GID: os.Getgid()})
	var bad *archive.FormatError
	switch {
	case err == nil:
	case in.err != nil:
		err = cay.Wrap(cay.Unavailable, in.err, "the connection broke")
	case errors.As(err, &bad):
		err = cay.Wrap(cay.Invalid, err, "cannot unpack into %s", dir)
	default:
		err = local(err, "cannot write")
	}
	return Copied(stats), err
}

// VolumeEntry is something in a volume.
type VolumeEntry struct {
	Name   string    `json:"name"`
	Path   string    `json:"path"`
	Type   string    `json:"type"` // file, directory, symlink or unknown
	Target string    `json:"target,omitempty"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"`
	UID    int       `json:"uid"`
	GID    int       `json:"gid"`
	MTime  time.Time `json:"mtime"`
}

// Dir reports whether it is a directory.
func (e VolumeEntry) Dir() bool { return e.Type == "directory" }

// VolumeFiles are the files of a volume, by the interface that the SDKs use.
type VolumeFiles struct {
	client *Client
	id     string
	token  string
}

// VolumeFiles opens the files of a volume, by its id or name.
func (c *Client) VolumeFiles(ctx context.Context, ref string) (*VolumeFiles, error) {
	v, err := c.Volume(ctx, ref)
	if err != nil {
		return nil, err
	}
	var opened struct {
		Token string `json:"token"`
	}
	if _, err := c.call(ctx, http.MethodGet, "/volumes/"+url.PathEscape(v.ID), nil, &opened); err != nil {
		return nil, err
	}
	return &VolumeFiles{client: c, id: v.ID, token: opened.Token}, nil
}

func (v *VolumeFiles) ask(ctx context.Context, method, route string, query url.Values, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, v.client.cfg.APIURL+"/volumecontent/"+v.id+"/"+route+"?"+query.Encode(), body)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the request cannot be made")
	}
	r.Header.Set("Authorization", "Bearer "+v.token)
	if body != nil {
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	return v.client.send(r)
}

func (v *VolumeFiles) read(ctx context.Context, method, route string, query url.Values, out any) error {
	resp, err := v.ask(ctx, method, route, query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(text)).Decode(out)
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "the server's answer cannot be read")
	}
	return nil
}

// Stat describes what is at a path. NotFound when there is nothing.
func (v *VolumeFiles) Stat(ctx context.Context, path string) (VolumeEntry, error) {
	var out VolumeEntry
	err := v.read(ctx, http.MethodGet, "path", url.Values{"path": {path}}, &out)
	return out, err
}

// List lists a directory; with a depth above 1 also what is in those below.
func (v *VolumeFiles) List(ctx context.Context, path string, depth int) ([]VolumeEntry, error) {
	var out []VolumeEntry
	err := v.read(ctx, http.MethodGet, "dir", url.Values{"path": {path}, "depth": {strconv.Itoa(max(depth, 1))}}, &out)
	return out, err
}

// Remove removes what is at a path, a directory with all in it.
func (v *VolumeFiles) Remove(ctx context.Context, path string) error {
	return v.read(ctx, http.MethodDelete, "path", url.Values{"path": {path}}, nil)
}

// ReadFile opens a file.
func (v *VolumeFiles) ReadFile(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := v.ask(ctx, http.MethodGet, "file", url.Values{"path": {path}}, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteFile writes a file, in place of one that is there, and makes the
// directories above it.
func (v *VolumeFiles) WriteFile(ctx context.Context, path string, content io.Reader) error {
	resp, err := v.ask(ctx, http.MethodPut, "file", url.Values{"path": {path}, "force": {"true"}}, content)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
