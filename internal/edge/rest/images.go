package rest

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/internal/template/oci"
)

// importRoute takes archives, whose size the image store bounds.
const importRoute = "/cay/v1/images/import"

func (s *server) imagesOf(ctx context.Context) (*oci.Store, error) {
	if s.images == nil {
		return nil, cay.Errorf(cay.Unsupported, "this server keeps no images")
	}
	return s.images.Of(teamOf(ctx))
}

// ListImages lists the images that a team has here.
func (o own) ListImages(ctx context.Context, _ cayv1.ListImagesRequestObject) (cayv1.ListImagesResponseObject, error) {
	images, err := o.imagesOf(ctx)
	if err != nil {
		return nil, err
	}
	out := cayv1.ListImages200JSONResponse{}
	for _, img := range images.List() {
		out = append(out, wireImage(img))
	}
	return out, nil
}

// GetImage describes one of them.
func (o own) GetImage(ctx context.Context, r cayv1.GetImageRequestObject) (cayv1.GetImageResponseObject, error) {
	images, err := o.imagesOf(ctx)
	if err != nil {
		return nil, err
	}
	img, err := images.Find(r.Name)
	if err != nil {
		return nil, err
	}
	return cayv1.GetImage200JSONResponse(wireImage(img)), nil
}

// RemoveImage forgets one.
func (o own) RemoveImage(ctx context.Context, r cayv1.RemoveImageRequestObject) (cayv1.RemoveImageResponseObject, error) {
	images, err := o.imagesOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := images.Remove(r.Name); err != nil {
		return nil, err
	}
	return cayv1.RemoveImage204Response{}, nil
}

// PullImage fetches one.
func (o own) PullImage(ctx context.Context, r cayv1.PullImageRequestObject) (cayv1.PullImageResponseObject, error) {
	images, err := o.imagesOf(ctx)
	if err != nil {
		return nil, err
	}
	creds, err := credentials(r.Body.Registry)
	if err != nil {
		return nil, err
	}
	return &imageProgress{server: o.server, do: func(step func(string)) (oci.Image, error) {
		return images.Pull(ctx, r.Body.Name, creds, step)
	}}, nil
}

// ImportImage takes one from an archive.
func (o own) ImportImage(ctx context.Context, r cayv1.ImportImageRequestObject) (cayv1.ImportImageResponseObject, error) {
	images, err := o.imagesOf(ctx)
	if err != nil {
		return nil, err
	}
	return &imageProgress{server: o.server, do: func(step func(string)) (oci.Image, error) {
		return images.Import(ctx, r.Body, value(r.Params.Name, ""), step)
	}}, nil
}

// credentials reads those of a registry.
func credentials(r *cayv1.ImageRegistry) (oci.Credentials, error) {
	if r == nil {
		return oci.Credentials{}, nil
	}
	switch r.Type {
	case cayv1.Registry:
		return oci.Credentials{Username: value(r.Username, ""), Password: value(r.Password, "")}, nil
	case cayv1.Gcp:
		return oci.Credentials{GCP: value(r.ServiceAccountJSON, "")}, nil
	case cayv1.Aws:
		return oci.Credentials{AWS: &oci.AWSCredentials{
			AccessKeyID: value(r.AwsAccessKeyID, ""), SecretAccessKey: value(r.AwsSecretAccessKey, ""), Region: value(r.AwsRegion, ""),
		}}, nil
	}
	return oci.Credentials{}, cay.Errorf(cay.Invalid, "registry.type: must be registry, aws or gcp")
}

// imageProgress does what takes minutes and tells how it goes.
type imageProgress struct {
	*server
	do func(step func(string)) (oci.Image, error)
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
	if err != nil {
		err = p.explain(err)
		if cay.KindOf(err) == cay.Internal {
			p.log.Error("an image could not be taken", "err", err)
		}
		e := wireError(err)
		tell(cayv1.ImageProgress{Error: &cayv1.Error{Code: e.Code, ErrorCode: e.ErrorCode, Message: e.Message}})
		return nil
	}
	wire := wireImage(img)
	tell(cayv1.ImageProgress{Image: &wire})
	return nil
}

// VisitImportImageResponse tells.
func (p *imageProgress) VisitImportImageResponse(w http.ResponseWriter) error {
	return p.VisitPullImageResponse(w)
}

func wireImage(img oci.Image) cayv1.Image {
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
