package rest

import (
	"net/http"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay/api/rest/cayv1"
)

// own answers Cay's own routes, /cay/v1. Each is a method with the name of its
// operation in api/openapi/cay.yaml.
type own struct{ *server }

var _ cayv1.StrictServerInterface = own{}

// mountOwn adds the routes of api/openapi/cay.yaml to a router that asks for
// the key.
func (s *server) mountOwn(guarded chi.Router) {
	cayv1.HandlerWithOptions(cayv1.NewStrictHandlerWithOptions(own{s}, []cayv1.StrictMiddlewareFunc{knowMembers, s.recordOwn}, cayv1.StrictHTTPServerOptions{
		RequestErrorHandlerFunc:  s.badBody,
		ResponseErrorHandlerFunc: s.fail,
	}), cayv1.ChiServerOptions{
		BaseRouter: guarded, ErrorHandlerFunc: s.badOwnParam, Middlewares: []cayv1.MiddlewareFunc{keepBody, s.checkIDs},
	})
}

// badOwnParam is badParam for the errors that the other generated package has.
func (s *server) badOwnParam(w http.ResponseWriter, r *http.Request, err error) {
	switch e := err.(type) {
	case *cayv1.RequiredParamError:
		err = &e2b.RequiredParamError{ParamName: e.ParamName}
	case *cayv1.RequiredHeaderError:
		err = &e2b.RequiredParamError{ParamName: e.ParamName}
	case *cayv1.InvalidParamFormatError:
		err = &e2b.InvalidParamFormatError{ParamName: e.ParamName, Err: e.Err}
	case *cayv1.TooManyValuesForParamError:
		err = &e2b.TooManyValuesForParamError{ParamName: e.ParamName, Count: e.Count}
	}
	s.badParam(w, r, err)
}
