package rest

import (
	"context"
	"io"
	"net/http"

	"github.com/cay-run/cay/api/rest/cayv1"
)

// ExportTemplate sends a template as one file.
func (o own) ExportTemplate(ctx context.Context, r cayv1.ExportTemplateRequestObject) (cayv1.ExportTemplateResponseObject, error) {
	file, _, err := o.builds.ExportTemplate(ctx, callerOf(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return &templateFile{server: o.server, ctx: ctx, file: file}, nil
}

type templateFile struct {
	*server
	ctx  context.Context // of the request: generated code gives a visitor none
	file io.ReadCloser
}

// VisitExportTemplateResponse sends it. After an error the connection breaks,
// so that no client takes a part for the whole.
func (t *templateFile) VisitExportTemplateResponse(w http.ResponseWriter) error {
	defer t.file.Close()
	w.Header().Set("Content-Type", "application/zstd")
	if _, err := io.Copy(w, t.file); err != nil {
		t.log.WarnContext(t.ctx, "a template was not sent as a whole", "err", err)
		panic(http.ErrAbortHandler)
	}
	return nil
}
