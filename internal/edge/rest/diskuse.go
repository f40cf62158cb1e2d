package rest

import (
	"context"

	"github.com/cay-run/cay/api/rest/cayv1"
)

// GetDiskUse says what templates take on the disk.
func (o own) GetDiskUse(ctx context.Context, _ cayv1.GetDiskUseRequestObject) (cayv1.GetDiskUseResponseObject, error) {
	all, err := o.fleet.DiskUse(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	out := cayv1.GetDiskUse200JSONResponse{}
	for _, u := range all {
		out = append(out, cayv1.DiskUse{TemplateID: string(u.Template), OwnBytes: u.Own, SharedBytes: u.Shared})
	}
	return out, nil
}
