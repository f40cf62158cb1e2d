package rest

import (
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
)

// createSpec checks a caller's wishes for a new sandbox. A wish that this version
// cannot serve is refused, never silently left out.
func createSpec(body *e2b.NewSandbox, secure bool, timeout int64) (cay.CreateSpec, error) {
	spec := cay.CreateSpec{
		Template: value(body.TemplateID, ""),
		Timeout:  seconds(value(body.Timeout, timeout)), OnTimeout: cay.KillOnTimeout,
		AutoResume: body.AutoResume != nil && value(body.AutoResume.Enabled, false),
		Secure:     secure,
		Metadata:   value(body.Metadata, nil), Env: value(body.EnvVars, nil),
		AskCommands: value(body.AskCommands, nil),
		Near:        sandboxID(value(body.Near, "")),
	}
	spec.Volumes = mountSpecs(value(body.VolumeMounts, nil))
	if auto := body.AutoCheckpoints; auto != nil {
		spec.Auto = autoCheckpoint(auto.EverySeconds, auto.BeforeCommands, auto.Keep, auto.Kind)
	}
	if value(body.AutoPause, false) {
		spec.OnTimeout = cay.PauseOnTimeout
		if !value(body.AutoPauseMemory, true) {
			spec.OnTimeout = cay.PauseFilesOnTimeout
		}
	}
	switch loss := value(body.OnHostLoss, ""); loss {
	case "", "end":
	case string(cay.ResumeOnHostLoss):
		spec.OnHostLoss = cay.ResumeOnHostLoss
	default:
		return spec, cay.Errorf(cay.Invalid, "onHostLoss: must be end or resume, not %.20q", loss)
	}
	if spec.Template == "" {
		return spec, cay.Errorf(cay.Invalid, "templateID: is required")
	}
	if err := checkUnserved(body); err != nil {
		return spec, err
	}
	for k, v := range spec.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return spec, cay.Errorf(cay.Invalid, "envVars: %.80q cannot be in an environment", k)
		}
	}
	if len(spec.AskCommands) > 0 && !secure {
		return spec, cay.Errorf(cay.Invalid, "askCommands: needs secure: true: without a token it is not known which party asks")
	}
	if err := cay.CheckAskCommands(spec.AskCommands); err != nil {
		return spec, err
	}
	var err error
	spec.Network, err = networkPolicy(body, secure)
	return spec, err
}

func checkUnserved(body *e2b.NewSandbox) error {
	switch {
	case !value(body.AutoPauseMemory, true) && !value(body.AutoPause, false):
		return cay.Errorf(cay.Invalid, "autoPauseMemory: needs autoPause")
	case !value(body.AutoPauseMemory, true) && body.AutoResume != nil && value(body.AutoResume.Enabled, false):
		return cay.Errorf(cay.Invalid, "autoPauseMemory: must not be false with autoResume")
	}
	return nil
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

// validMask reports whether s is a host with or without a port. ${PORT}
// stands for a port.
func validMask(s string) bool {
	s = strings.ReplaceAll(s, "${PORT}", "1")
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return hostName.MatchString(s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && hostName.MatchString(host)
}
