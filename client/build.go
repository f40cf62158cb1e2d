package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cay-run/cay"
)

// NewBuild names a build: the template that it is of, made when there is
// none, and what its sandboxes get. Zero limits are the server's usual.
type NewBuild struct {
	Name     string   `json:"name"` // may be name:tag
	Tags     []string `json:"tags,omitempty"`
	CPUs     int      `json:"cpuCount,omitempty"`
	MemoryMB int      `json:"memoryMB,omitempty"`
}

// Build is a build that was requested.
type Build struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Names      []string `json:"names"`
}

// BuildStart is what a build is made of. One of FromImage and FromTemplate is
// given.
type BuildStart struct {
	FromImage    string      `json:"fromImage,omitempty"`
	FromTemplate string      `json:"fromTemplate,omitempty"`
	Archive      string      `json:"cayArchive,omitempty"` // or the hash of an uploaded file of a template
	Registry     *Registry   `json:"fromImageRegistry,omitempty"`
	Force        bool        `json:"force,omitempty"` // run every step, whatever is known
	Steps        []BuildStep `json:"steps,omitempty"`
	StartCmd     string      `json:"startCmd,omitempty"`
	ReadyCmd     string      `json:"readyCmd,omitempty"`
	Docker       bool        `json:"docker,omitempty"` // root of its sandboxes gets what Docker needs

	// Secrets are what steps may see and no layer keeps, by name.
	Secrets map[string][]byte `json:"caySecrets,omitempty"`

	// Volumes are seen by RUN steps. Files on them are no part of the template.
	Volumes []VolumeMount `json:"volumeMounts,omitempty"`
}

// BuildStep is one step: COPY, RUN, ENV, WORKDIR or USER with the arguments
// that E2B's builds have.
type BuildStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash,omitempty"`
	Force     bool     `json:"force,omitempty"`

	Secrets []SecretMount `json:"caySecrets,omitempty"` // of RUN
}

// SecretMount says where a RUN sees a secret of its build.
type SecretMount struct {
	ID     string `json:"id"`
	Target string `json:"target,omitempty"` // path of a file
	Env    string `json:"env,omitempty"`    // name of a variable
	Mode   uint32 `json:"mode,omitempty"`
	UID    int    `json:"uid,omitempty"`
	GID    int    `json:"gid,omitempty"`
}

// BuildStatus is how a build goes. Status is waiting, building, ready or
// error.
type BuildStatus struct {
	Status string     `json:"status"`
	Log    []BuildLog `json:"logEntries"`
	Reason *struct {
		Message string `json:"message"`
		Step    string `json:"step"`
	} `json:"reason"`
}

// BuildLog is a line of a build's log. Step is "base", a number from 1, or
// "finalize".
type BuildLog struct {
	Timestamp time.Time `json:"timestamp"`
	Message   string    `json:"message"`
	Level     string    `json:"level"`
	Step      string    `json:"step"`
}

// RequestBuild names a build, which StartBuild starts.
func (c *Client) RequestBuild(ctx context.Context, in NewBuild) (Build, error) {
	var out Build
	_, err := c.call(ctx, http.MethodPost, "/v3/templates", in, &out)
	return out, err
}

// StartBuild starts a build.
func (c *Client) StartBuild(ctx context.Context, b Build, in BuildStart) error {
	_, err := c.call(ctx, http.MethodPost, b.path("/v2/templates/", ""), in, nil)
	return err
}

// BuildStatus tells how a build goes, with the lines of its log from the
// offset on.
func (c *Client) BuildStatus(ctx context.Context, b Build, offset int) (BuildStatus, error) {
	var out BuildStatus
	_, err := c.call(ctx, http.MethodGet, b.path("/templates/", "/status?logsOffset="+strconv.Itoa(offset)), nil, &out)
	return out, err
}

func (b Build) path(prefix, suffix string) string {
	return prefix + url.PathEscape(b.TemplateID) + "/builds/" + url.PathEscape(b.BuildID) + suffix
}

// UploadFiles sends the archive of a COPY, a tar, unless the server has it.
// archive opens it; size is in bytes.
func (c *Client) UploadFiles(ctx context.Context, b Build, hash string, size int64, archive func() (io.ReadCloser, error)) error {
	var link struct {
		Present bool              `json:"present"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
	}
	if _, err := c.call(ctx, http.MethodGet, "/templates/"+url.PathEscape(b.TemplateID)+"/files/"+hash, nil, &link); err != nil {
		return err
	}
	if link.Present {
		return nil
	}
	body, err := archive()
	if err != nil {
		return err
	}
	defer body.Close()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, link.URL, body)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the server's link for files is unusable")
	}
	r.ContentLength = size
	for name, value := range link.Headers {
		r.Header.Set(name, value)
	}
	resp, err := c.cfg.HTTP.Do(r)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return failure(resp)
	}
	return nil
}

// buildPoll is between two looks at a build.
const buildPoll = 150 * time.Millisecond

// WaitBuild waits until a build is over and yields the lines of its log. A
// build that failed is an Invalid error with its reason.
func (c *Client) WaitBuild(ctx context.Context, b Build, line func(BuildLog)) error {
	offset := 0
	for {
		s, err := c.BuildStatus(ctx, b, offset)
		if err != nil {
			return err
		}
		offset += len(s.Log)
		for _, l := range s.Log {
			line(l)
		}
		switch {
		case len(s.Log) > 0: // there may be more already
		case s.Status == "ready":
			return nil
		case s.Status == "error" && s.Reason != nil:
			text := s.Reason.Message
			if s.Reason.Step != "" {
				text = "step " + s.Reason.Step + ": " + text
			}
			return cay.Errorf(cay.Invalid, "%s", text)
		case s.Status == "error":
			return cay.Errorf(cay.Invalid, "the build failed")
		default:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(buildPoll):
			}
		}
	}
}
