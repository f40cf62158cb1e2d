package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// TemplateInfo is a template with its builds, newest first.
type TemplateInfo struct {
	ID     string          `json:"templateID"`
	Names  []string        `json:"names"`
	Public bool            `json:"public"`
	Builds []TemplateBuild `json:"builds"`
}

// TemplateBuild is a build of a template. Sizes are in MB.
type TemplateBuild struct {
	ID        string    `json:"buildID"`
	Status    string    `json:"status"`
	CPUs      int       `json:"cpuCount"`
	MemoryMB  int       `json:"memoryMB"`
	DiskMB    int       `json:"diskSizeMB"`
	CreatedAt time.Time `json:"createdAt"`
}

// TemplateInfo describes a template by its name or id.
func (c *Client) TemplateInfo(ctx context.Context, ref string) (TemplateInfo, error) {
	id, err := c.templateID(ctx, ref)
	if err != nil {
		return TemplateInfo{}, err
	}
	var out TemplateInfo
	_, err = c.call(ctx, http.MethodGet, "/templates/"+url.PathEscape(id), nil, &out)
	return out, err
}

// templateID finds the id of a template that may be given by name.
func (c *Client) templateID(ctx context.Context, ref string) (string, error) {
	var out struct {
		ID string `json:"templateID"`
	}
	_, err := c.call(ctx, http.MethodGet, "/templates/aliases/"+url.PathEscape(ref), nil, &out)
	return out.ID, err
}

// AssignTags points tags at the build that target, a name or name:tag, means.
func (c *Client) AssignTags(ctx context.Context, target string, tags []string) error {
	_, err := c.call(ctx, http.MethodPost, "/templates/tags", map[string]any{"target": target, "tags": tags}, nil)
	return err
}

// RemoveTags takes tags of a template away. Builds stay.
func (c *Client) RemoveTags(ctx context.Context, name string, tags []string) error {
	_, err := c.call(ctx, http.MethodDelete, "/templates/tags", map[string]any{"name": name, "tags": tags}, nil)
	return err
}

// PublishTemplate says whether other teams can use a template.
func (c *Client) PublishTemplate(ctx context.Context, ref string, public bool) error {
	_, err := c.call(ctx, http.MethodPatch, "/v2/templates/"+url.PathEscape(ref), map[string]any{"public": public}, nil)
	return err
}

// DiskUse is what a template takes on the server's disk, in bytes: Own is what
// no other template has, which its removal gives back, at once or with the
// layers of its builds; Shared is what other templates have too.
type DiskUse struct {
	TemplateID string `json:"templateID"`
	Own        int64  `json:"ownBytes"`
	Shared     int64  `json:"sharedBytes"`
}

// DiskUse says what all templates take, by their ids.
func (c *Client) DiskUse(ctx context.Context) (map[string]DiskUse, error) {
	var list []DiskUse
	_, err := c.call(ctx, http.MethodGet, "/cay/v1/disk-use", nil, &list)
	out := map[string]DiskUse{}
	for _, u := range list {
		out[u.TemplateID] = u
	}
	return out, err
}

// ExportTemplate returns a template as one file. An error while it is read
// means that what came is of no use.
func (c *Client) ExportTemplate(ctx context.Context, ref string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.cfg.APIURL+"/cay/v1/templates/"+url.PathEscape(ref)+"/export", nil)
	if err != nil {
		return nil, err
	}
	c.present(r.Header)
	resp, err := c.cfg.HTTP.Do(r)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, failure(resp)
	}
	return resp.Body, nil
}
