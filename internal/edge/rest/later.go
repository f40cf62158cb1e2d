package rest

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
)

// errOldBuild answers for the oldest way to build a template. It needs a push
// to a registry that E2B's service alone has, and E2B has removed it as well.
func errOldBuild() error {
	return cay.Errorf(cay.Unsupported, "this way to build a template is gone").WithCode(cay.CodeGone).
		WithHint("use Template.build of an SDK, `cay template build` or `e2b template create`: they ask POST /v3/templates")
}

// BuildTemplateV1 refuses.
func (s *server) BuildTemplateV1(context.Context, e2b.BuildTemplateV1RequestObject) (e2b.BuildTemplateV1ResponseObject, error) {
	return nil, errOldBuild()
}

// RebuildTemplateV1 refuses.
func (s *server) RebuildTemplateV1(context.Context, e2b.RebuildTemplateV1RequestObject) (e2b.RebuildTemplateV1ResponseObject, error) {
	return nil, errOldBuild()
}

// StartBuildV1 refuses.
func (s *server) StartBuildV1(context.Context, e2b.StartBuildV1RequestObject) (e2b.StartBuildV1ResponseObject, error) {
	return nil, errOldBuild()
}
