package builds

import (
	"context"
	"io"

	"github.com/cay-run/cay"
)

// ExportTemplate returns the file that a template becomes, and its name. The
// template stays until the file is closed.
func (q *Queue) ExportTemplate(ctx context.Context, who cay.Caller, ref string) (file io.ReadCloser, name string, err error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return file, name, err
	}
	if q.builder == nil {
		return nil, "", errNoBuilder()
	}
	t, unpin, err := q.ledger.Hold(ctx, who.Team, ref, false)
	if err != nil {
		return nil, "", err
	}
	name = string(t.ID)
	if len(t.Names) > 0 {
		name = t.Names[0]
	}
	switch {
	case t.Snapshot == "":
		err = cay.Errorf(cay.NotFound, "template %q has no finished build", ref)
	case t.Source != "":
		err = cay.Errorf(cay.Unsupported, "%q is the snapshot of a sandbox, whose memory other machines cannot use", ref).
			WithHint("build a template from it, and export that")
	default:
		file, err = q.builder.Export(ctx, name, t.Limits, t.Setup, t.Snapshot)
	}
	if err != nil {
		unpin()
		return nil, "", err
	}
	return &pinned{file, unpin}, name, nil
}

// pinned is a file that keeps a snapshot.
type pinned struct {
	io.ReadCloser
	unpin func()
}

func (p *pinned) Close() error {
	err := p.ReadCloser.Close()
	if p.unpin != nil {
		p.unpin()
		p.unpin = nil
	}
	return err
}
