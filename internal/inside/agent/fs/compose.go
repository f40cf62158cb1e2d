package fs

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// Limits of one composition.
const (
	maxComposeBody = 1 << 20
	maxSources     = 10_000
)

// compose serves POST /files/compose: it makes a file of others, end to end.
func (s *Service) compose(w http.ResponseWriter, r *http.Request, c call) error {
	var in struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := readJSON(r, maxComposeBody, &in); err != nil {
		return err
	}
	if in.Username != "" {
		u, err := s.account(in.Username)
		if err != nil {
			return err
		}
		c.user = u
	}
	if len(in.Sources) == 0 || len(in.Sources) > maxSources || in.Destination == "" {
		return invalid("a composition needs a destination and 1 to %d sources", maxSources)
	}
	target, err := c.target(in.Destination)
	if err != nil {
		return err
	}
	sources := make([]string, len(in.Sources))
	var size int64
	for i, p := range in.Sources {
		if sources[i], err = c.target(p); err != nil {
			return err
		}
		n, err := checkSource(sources[i], target)
		if err != nil {
			return err
		}
		size += n
	}
	content := &chain{paths: sources}
	defer content.close()
	if err := writeFile(target, content, size, c.user, nil); err != nil {
		return err
	}
	return writeJSON(w, written{Path: target, Name: filepath.Base(target), Type: "file"})
}

// checkSource finds what is wrong with a source before anything is written.
func checkSource(path, target string) (int64, error) {
	f, st, err := openRegular(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if dst, err := os.Stat(target); err == nil && os.SameFile(st, dst) {
		return 0, invalid("'%s' is a source and the destination", target)
	}
	return st.Size(), nil
}

// chain reads files one after the other, with one open at a time.
type chain struct {
	paths []string
	f     *os.File
}

func (c *chain) Read(p []byte) (int, error) {
	for {
		if c.f == nil {
			if len(c.paths) == 0 {
				return 0, io.EOF
			}
			f, _, err := openRegular(c.paths[0])
			if err != nil {
				return 0, err
			}
			c.f, c.paths = f, c.paths[1:]
		}
		n, err := c.f.Read(p)
		if n > 0 || err != nil && err != io.EOF {
			return n, err
		}
		c.close()
	}
}

func (c *chain) close() {
	if c.f != nil {
		_ = c.f.Close() // read only
		c.f = nil
	}
}
