package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/builds"
)

// importRoute takes archives, whose size the image store bounds.
const importRoute = "/cay/v1/images/import"

// ListImages lists the images that a team has here.
func (o own) ListImages(ctx context.Context, _ cayv1.ListImagesRequestObject) (cayv1.ListImagesResponseObject, error) {
	images, err := o.builds.Images(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := cayv1.ListImages200JSONResponse{}
	for _, img := range images {
		out = append(out, wireImage(img))
	}
	return out, nil
}

// GetImage describes one of them.
func (o own) GetImage(ctx context.Context, r cayv1.GetImageRequestObject) (cayv1.GetImageResponseObject, error) {
	img, err := o.builds.Image(ctx, callerOf(ctx), r.Name)
	if err != nil {
		return nil, err
	}
	return cayv1.GetImage200JSONResponse(wireImage(img)), nil
}

// RemoveImage forgets one.
func (o own) RemoveImage(ctx context.Context, r cayv1.RemoveImageRequestObject) (cayv1.RemoveImageResponseObject, error) {
	if err := o.builds.RemoveImage(ctx, callerOf(ctx), r.Name); err != nil {
		return nil, err
	}
	return cayv1.RemoveImage204Response{}, nil
}

// PullImage fetches one.
func (o own) PullImage(ctx context.Context, r cayv1.PullImageRequestObject) (cayv1.PullImageResponseObject, error) {
	opens, err := registryAuth(r.Body.Registry)
	if err != nil {
		return nil, err
	}
	do, err := o.builds.PullImage(ctx, callerOf(ctx), r.Body.Name, opens)
	if err != nil {
		return nil, err
	}
	return &imageProgress{server: o.server, ctx: ctx, action: "image.pulled", do: do}, nil
}

// ImportImage takes one from an archive.
func (o own) ImportImage(ctx context.Context, r cayv1.ImportImageRequestObject) (cayv1.ImportImageResponseObject, error) {
	do, err := o.builds.ImportImage(ctx, callerOf(ctx), r.Body, value(r.Params.Name, ""))
	if err != nil {
		return nil, err
	}
	return &imageProgress{server: o.server, ctx: ctx, action: "image.imported", do: do}, nil
}

// registryAuth reads what opens a registry; nil is anonymous.
func registryAuth(r *cayv1.ImageRegistry) (*cay.RegistryAuth, error) {
	if r == nil {
		return nil, nil
	}
	switch r.Type {
	case cayv1.Registry, cayv1.Gcp, cayv1.Aws:
		return &cay.RegistryAuth{
			Type: string(r.Type), Username: value(r.Username, ""), Password: value(r.Password, ""),
			AccessKeyID: value(r.AwsAccessKeyID, ""), SecretAccessKey: value(r.AwsSecretAccessKey, ""), Region: value(r.AwsRegion, ""),
			ServiceAccount: value(r.ServiceAccountJSON, ""),
		}, nil
	}
	return nil, cay.Errorf(cay.Invalid, "registry.type: must be registry, aws or gcp")
}

// imageProgress does what takes minutes and tells how it goes.
type imageProgress struct {
	*server
	ctx    context.Context
	action string // for the audit log
	do     builds.Taking
}

// VisitPullImageResponse tells.
func (p *imageProgress) VisitPullImageResponse(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	flush := http.NewResponseController(w)
	tell := func(line cayv1.ImageProgress) {
		text, err := json.Marshal(line)
		if err != nil {
			return
		}
		_, _ = w.Write(append(text, '\n')) // the client may be gone
		_ = flush.Flush()
	}
	img, err := p.do(func(step string) { tell(cayv1.ImageProgress{Step: &step}) })
	if err = p.recordTaken(img, err); err != nil {
		err = p.explain(err)
		if cay.KindOf(err) == cay.Internal {
			p.log.ErrorContext(p.ctx, "an image could not be taken", "err", err)
		}
		e := wireError(err)
		tell(cayv1.ImageProgress{Error: &cayv1.Error{Code: e.Code, ErrorCode: e.ErrorCode, Message: e.Message}})
		return nil
	}
	wire := wireImage(img)
	tell(cayv1.ImageProgress{Image: &wire})
	return nil
}

// recordTaken records an image that was taken, or was not.
func (p *imageProgress) recordTaken(img cay.Image, err error) error {
	if err != nil {
		p.audit.Count(audit.Seen{Who: callerOf(p.ctx), Action: p.action, Outcome: cay.OutcomeFailed, Details: []string{"error", codeOf(err)}})
		return err
	}
	return p.audit.Record(p.ctx, callerOf(p.ctx), p.action, strings.Join(img.Names, " "), cay.OutcomeOK, "digest", img.Digest, "bytes", strconv.FormatInt(img.Size, 10))
}

// VisitImportImageResponse tells.
func (p *imageProgress) VisitImportImageResponse(w http.ResponseWriter) error {
	return p.VisitPullImageResponse(w)
}

func wireImage(img cay.Image) cayv1.Image {
	c := img.Config
	return cayv1.Image{
		Digest: img.Digest, Names: append([]string{}, img.Names...), Size: img.Size, Files: int32(img.Files),
		Imported: img.Imported, CreatedAt: img.Created,
		Env: list(c.Env), User: pointer(c.User), WorkingDir: pointer(c.WorkingDir),
		Entrypoint: list(c.Entrypoint), Cmd: list(c.Cmd), OnBuild: list(c.OnBuild),
	}
}

// list is a list that is left out when it is empty.
func list(s []string) *[]string {
	if len(s) == 0 {
		return nil
	}
	return &s
}
