# cmake -DINPUT=FILE -DOUTPUT=FILE.cc -DHEADER=NAME.h -DFUNCTION=NAME -P embed_file.cmake: a source with a function that returns
# the file's bytes.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
string(REGEX REPLACE "(('[^']*',){24})" "\\1\n    " bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"${HEADER}\"

namespace larder {
namespace {

constexpr char kBytes[] = {
    ${bytes}};

}  // namespace

std::string_view ${FUNCTION}() { return {kBytes, sizeof kBytes}; }

}  // namespace larder
")
