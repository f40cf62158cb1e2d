package dockerfile

import (
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
)

// copy reads a COPY.
func (s *stage) copy(c *instructions.CopyCommand, line int) (*Copy, error) {
	out, err := s.files(c.SourcesAndDest, line)
	if err != nil {
		return nil, err
	}
	out.Owner, out.Mode, out.Exclude, out.Parents = c.Chown, c.Chmod, c.ExcludePatterns, c.Parents
	if c.From == "" {
		return out, nil
	}
	from, err := s.r.expand(c.From, s.variables(), false)
	if err != nil {
		return nil, bad(line, err)
	}
	if i := s.r.lookup(from, s.index); i >= 0 {
		out.Stage, err = s.r.need(i)
		return out, err
	}
	out.Stage = s.r.lend(from)
	return out, nil
}

// add reads an ADD.
func (s *stage) add(c *instructions.AddCommand, line int) (*Copy, error) {
	out, err := s.files(c.SourcesAndDest, line)
	if err != nil {
		return nil, err
	}
	out.Owner, out.Mode, out.Exclude = c.Chown, c.Chmod, c.ExcludePatterns
	out.Add, out.Checksum = c.Unpack == nil || *c.Unpack, c.Checksum
	for _, src := range out.Sources {
		if strings.HasPrefix(src, "git@") || strings.HasSuffix(strings.SplitN(src, "#", 2)[0], ".git") && strings.Contains(src, "://") {
			return nil, unsupported(line, "ADD of a git repository: use RUN git clone")
		}
	}
	return out, nil
}

func (s *stage) files(from instructions.SourcesAndDest, line int) (*Copy, error) {
	out := &Copy{Sources: from.SourcePaths, Dest: from.DestPath, Stage: -1}
	for _, f := range from.SourceContents {
		data := f.Data
		if f.Expand {
			var err error
			if data, err = s.expandText(f.Data); err != nil {
				return nil, bad(line, err)
			}
		}
		out.Contents = append(out.Contents, Content{Name: f.Path, Data: data})
	}
	if len(out.Sources)+len(out.Contents) > 1 && !strings.HasSuffix(out.Dest, "/") && out.Dest != "." {
		return nil, badf(line, "several sources need a directory, which ends in /: %q", out.Dest)
	}
	return out, nil
}

// expandText expands a here-document, whose quotes are text.
func (s *stage) expandText(text string) (string, error) {
	s.r.lex.RawQuotes, s.r.lex.RawEscapes = true, true
	defer func() { s.r.lex.RawQuotes, s.r.lex.RawEscapes = false, false }()
	return s.r.expand(text, s.variables(), false)
}
