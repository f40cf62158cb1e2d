package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/cay-run/cay"
)

// Image is an image of a registry or an archive that the team has on the
// server. Size is in bytes.
type Image struct {
	Digest     string    `json:"digest"`
	Names      []string  `json:"names"`
	Size       int64     `json:"size"`
	Files      int       `json:"files"`
	Imported   bool      `json:"imported"`
	CreatedAt  time.Time `json:"createdAt"`
	Env        []string  `json:"env,omitempty"`
	User       string    `json:"user,omitempty"`
	WorkingDir string    `json:"workingDir,omitempty"`
	Entrypoint []string  `json:"entrypoint,omitempty"`
	Cmd        []string  `json:"cmd,omitempty"`
	OnBuild    []string  `json:"onBuild,omitempty"`
}

// Registry are the credentials of a registry, in the words of a build's
// fromImageRegistry. Type is "registry" (Username, Password), "aws" or "gcp".
type Registry struct {
	Type               string `json:"type"`
	Username           string `json:"username,omitempty"`
	Password           string `json:"password,omitempty"`
	AWSAccessKeyID     string `json:"awsAccessKeyId,omitempty"`
	AWSSecretAccessKey string `json:"awsSecretAccessKey,omitempty"`
	AWSRegion          string `json:"awsRegion,omitempty"`
	ServiceAccountJSON string `json:"serviceAccountJson,omitempty"`
}

// Images lists the team's images.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	var out []Image
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/images", nil, &out)
	return out, err
}

// Image describes an image by its name or digest.
func (c *Client) Image(ctx context.Context, name string) (Image, error) {
	var out Image
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/images/"+url.PathEscape(name), nil, &out)
	return out, err
}

// RemoveImage forgets a name, and with the last one, or by its digest, the
// image.
func (c *Client) RemoveImage(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, "/cay/v1/images/"+url.PathEscape(name), nil, nil)
	return err
}

// PullImage has the server fetch an image. creds and step may be nil; step is
// told what is being done.
func (c *Client) PullImage(ctx context.Context, name string, creds *Registry, step func(string)) (Image, error) {
	body, err := json.Marshal(map[string]any{"name": name, "registry": creds})
	if err != nil {
		return Image{}, cay.Wrap(cay.Invalid, err, "the request cannot be encoded")
	}
	return c.imageWork(ctx, "/cay/v1/images/pull", "application/json", bytes.NewReader(body), step)
}

// ImportImage sends an archive: what docker save writes or a tar of an OCI
// layout. An empty name leaves it as the archive has it.
func (c *Client) ImportImage(ctx context.Context, archive io.Reader, name string, step func(string)) (Image, error) {
	path := "/cay/v1/images/import"
	if name != "" {
		path += "?name=" + url.QueryEscape(name)
	}
	return c.imageWork(ctx, path, "application/octet-stream", archive, step)
}

func (c *Client) imageWork(ctx context.Context, path, kind string, body io.Reader, step func(string)) (Image, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.APIURL+path, body)
	if err != nil {
		return Image{}, cay.Wrap(cay.Invalid, err, "the request cannot be made")
	}
	c.present(r.Header)
	r.Header.Set("Content-Type", kind)
	resp, err := c.cfg.HTTP.Do(r)
	if err != nil {
		return Image{}, c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Image{}, failure(resp)
	}
	lines := json.NewDecoder(resp.Body)
	for {
		var line struct {
			Step  string `json:"step"`
			Image *Image `json:"image"`
			Error *struct {
				Code    int    `json:"code"`
				Message string `json:"message"`
				Detail  string `json:"error_code"`
			} `json:"error"`
		}
		if err := lines.Decode(&line); err != nil {
			return Image{}, c.unreachable(ctx, err)
		}
		switch {
		case line.Error != nil:
			return Image{}, &cay.Error{Kind: kindOf(line.Error.Code), Code: line.Error.Detail, Msg: line.Error.Message}
		case line.Image != nil:
			return *line.Image, nil
		case step != nil && line.Step != "":
			step(line.Step)
		}
	}
}
