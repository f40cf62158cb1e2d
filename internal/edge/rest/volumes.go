package rest

import (
	"context"
	"net/http"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/control/volumes"
)

// isTree reports whether a request sends the files of a volume, whose size the
// volume bounds.
func isTree(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/cay/v1/volumes/") && strings.HasSuffix(r.URL.Path, "/tree")
}

// VolumeTokens makes what opens the files of one volume.
type VolumeTokens interface {
	Volume(team cay.TeamID, id cay.VolumeID) string
}

// ListVolumes lists a team's volumes.
func (s *server) ListVolumes(ctx context.Context, _ e2b.ListVolumesRequestObject) (e2b.ListVolumesResponseObject, error) {
	list, err := s.volumes.List(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := e2b.ListVolumes200JSONResponse{}
	for _, v := range list {
		out = append(out, e2b.Volume{VolumeID: string(v.ID), Name: v.Name})
	}
	return out, nil
}

// CreateVolume makes a volume.
func (s *server) CreateVolume(ctx context.Context, r e2b.CreateVolumeRequestObject) (e2b.CreateVolumeResponseObject, error) {
	v, err := s.volumes.Create(ctx, callerOf(ctx), value(r.Body.Name, ""), int(value(r.Body.CaySizeMB, 0)))
	if err != nil {
		return nil, err
	}
	return e2b.CreateVolume201JSONResponse(s.withToken(v)), nil
}

// GetVolume finds a volume and tells what opens its files.
func (s *server) GetVolume(ctx context.Context, r e2b.GetVolumeRequestObject) (e2b.GetVolumeResponseObject, error) {
	who := callerOf(ctx)
	if err := who.May(cay.WriteVolumes); err != nil { // which the token allows
		return nil, err
	}
	v, err := s.volumes.Volume(ctx, who, r.VolumeID)
	if err != nil {
		return nil, err
	}
	return e2b.GetVolume200JSONResponse(s.withToken(v)), nil
}

func (s *server) withToken(v cay.Volume) e2b.VolumeAndToken {
	return e2b.VolumeAndToken{VolumeID: string(v.ID), Name: v.Name, Token: s.volumeTokens.Volume(v.Team, v.ID), Domain: pointer(s.domain)}
}

// DeleteVolume removes a volume.
func (s *server) DeleteVolume(ctx context.Context, r e2b.DeleteVolumeRequestObject) (e2b.DeleteVolumeResponseObject, error) {
	return e2b.DeleteVolume204Response{}, s.volumes.Delete(ctx, callerOf(ctx), r.VolumeID)
}

// OwnListVolumes lists a team's volumes with their sizes.
func (o own) OwnListVolumes(ctx context.Context, _ cayv1.OwnListVolumesRequestObject) (cayv1.OwnListVolumesResponseObject, error) {
	list, err := o.volumes.List(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := cayv1.OwnListVolumes200JSONResponse{}
	for _, v := range list {
		out = append(out, wireVolume(v))
	}
	return out, nil
}

// OwnCreateVolume makes a volume.
func (o own) OwnCreateVolume(ctx context.Context, r cayv1.OwnCreateVolumeRequestObject) (cayv1.OwnCreateVolumeResponseObject, error) {
	v, err := o.volumes.Create(ctx, callerOf(ctx), value(r.Body.Name, ""), int(value(r.Body.SizeMB, 0)))
	if err != nil {
		return nil, err
	}
	return cayv1.OwnCreateVolume201JSONResponse(wireVolume(v)), nil
}

// OwnGetVolume describes a volume.
func (o own) OwnGetVolume(ctx context.Context, r cayv1.OwnGetVolumeRequestObject) (cayv1.OwnGetVolumeResponseObject, error) {
	v, err := o.volumes.Info(ctx, callerOf(ctx), r.VolumeID)
	if err != nil {
		return nil, err
	}
	return cayv1.OwnGetVolume200JSONResponse(wireInfo(v)), nil
}

// OwnResizeVolume changes how much a volume may hold.
func (o own) OwnResizeVolume(ctx context.Context, r cayv1.OwnResizeVolumeRequestObject) (cayv1.OwnResizeVolumeResponseObject, error) {
	v, err := o.volumes.Resize(ctx, callerOf(ctx), r.VolumeID, int(value(r.Body.SizeMB, 0)))
	if err != nil {
		return nil, err
	}
	return cayv1.OwnResizeVolume200JSONResponse(wireVolume(v)), nil
}

// OwnDeleteVolume removes a volume.
func (o own) OwnDeleteVolume(ctx context.Context, r cayv1.OwnDeleteVolumeRequestObject) (cayv1.OwnDeleteVolumeResponseObject, error) {
	return cayv1.OwnDeleteVolume204Response{}, o.volumes.Delete(ctx, callerOf(ctx), r.VolumeID)
}

func wireVolume(v cay.Volume) cayv1.Volume {
	return cayv1.Volume{VolumeID: string(v.ID), Name: v.Name, SizeMB: int64(v.SizeMB), CreatedAt: v.CreatedAt}
}

func wireInfo(v volumes.Info) cayv1.Volume {
	out := wireVolume(v.Volume)
	out.Usage = &struct {
		Files       int64 `json:"files"`
		SizeBytes   int64 `json:"sizeBytes"`
		StoredBytes int64 `json:"storedBytes"`
		UsedBytes   int64 `json:"usedBytes"`
	}{v.Usage.Files, v.Usage.Size, v.Usage.Stored, v.Usage.Used}
	boxes := []string{}
	for _, id := range v.Sandboxes {
		boxes = append(boxes, string(id))
	}
	out.Sandboxes = &boxes
	return out
}

func mountSpecs(list []e2b.VolumeMount) []cay.MountSpec {
	var out []cay.MountSpec
	for _, m := range list {
		out = append(out, cay.MountSpec{Volume: m.Name, Path: m.Path, SubPath: value(m.SubPath, ""), ReadOnly: value(m.ReadOnly, false)})
	}
	return out
}

func wireMounts(list []cay.VolumeMount) *[]e2b.VolumeMount {
	if len(list) == 0 {
		return nil
	}
	out := make([]e2b.VolumeMount, 0, len(list))
	for _, m := range list {
		wire := e2b.VolumeMount{Name: m.Name, Path: m.Path, SubPath: pointer(m.SubPath)}
		if m.ReadOnly {
			wire.ReadOnly = &m.ReadOnly
		}
		out = append(out, wire)
	}
	return &out
}
